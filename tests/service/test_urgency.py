"""A load that waits goes first: in the lanes after one chunk, on the links at once, and then chunk by chunk."""

import asyncio
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import create_memory
from flexkv_py.core.messages import BlockName, Priority
from flexkv_py.wire.messages import Load, Progress, RegisterMemory, Wait
from flexkv_tiers.base import FrameSpan
from flexkv_tiers.fake import FakeStore, Operation, Verdict
from flexkv_tiers.lanes import CopyTask
from flexkv_tiers.lanes.base import Copied
from flexkv_tiers.memory import Arena

from .conftest import GEOMETRY
from .test_virtual_time import BLOCKS_IN_ARENA, SECOND_NS, Peer, World, keys, pages
from .virtual_loop import VirtualLoop

Scene = Callable[[World, Peer], Coroutine[Any, Any, None]]


class WatchedArena(Arena):
    """Remembers which frames the lanes took, in order, and can stop them at a chunk until the gate is opened."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.order: list[int] = []
        self.stop_at = -1
        self.gate = threading.Event()
        self.on_stopped: Callable[[], object] = lambda: None

    def view(self, frame: int, length: int) -> memoryview:
        if threading.current_thread().name.startswith("copy-lane"):
            self.order.append(frame)
            if len(self.order) == self.stop_at:
                self.on_stopped()
                assert self.gate.wait(10)
        return super().view(frame, length)


def play(path: Path, scene: Scene, make_arena: Callable[..., Arena] = Arena) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with AsyncExitStack() as stack:
            world = World(path / "worker.sock", stack, loop, make_arena)
            peer = await world.client()
            await scene(world, peer)
            await peer.close()
            await world.executor.settle()
            world.engine.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_a_flood_of_saves_delays_a_load_by_one_chunk(tmp_path: Path) -> None:
    """A load is asked for while a lane copies out forty blocks in one go: its first chunk is the lane's next."""
    arenas: list[WatchedArena] = []

    def make_arena(*arguments: Any, **options: Any) -> Arena:
        arenas.append(WatchedArena(*arguments, **options))
        return arenas[-1]

    async def scene(world: World, peer: Peer) -> None:
        [arena], start = arenas, world.lanes.start
        await peer.end(await peer.save(keys(1, 1)))
        first_frames: list[int] = []
        begun: list[int] = []

        def watch(task: CopyTask, priority: Priority, copied: Copied) -> None:
            start(task, priority, copied)
            if priority is Priority.LOAD:
                begun.append(len(arena.order))
                first_frames.append(task.frames[0][0])
                arena.gate.set()

        world.lanes.start = watch  # type: ignore[method-assign]
        stopped = asyncio.Event()
        arena.on_stopped = lambda: world.loop.call_soon_threadsafe(stopped.set)
        arena.stop_at = len(arena.order) + 5
        flood = await peer.save(keys(1000, 40))
        await stopped.wait()
        opened = await peer.ask(Load(0, keys(1, 1), pages(1), 1, deadline_ms=60_000))
        assert (await peer.end(opened.ticket)).outcomes == ["loaded"]
        assert (await peer.end(flood)).outcomes == ["stored"] * 40
        between = arena.order.index(first_frames[0], begun[0]) - begun[0]
        assert between <= 1
        assert len(arena.order) - begun[0] > 100, "the flood was over already"

    play(tmp_path, scene, make_arena)


def test_a_flood_of_demotions_does_not_hold_up_a_promotion(tmp_path: Path) -> None:
    """With every write slow and dozens waiting for their turn, a block comes up in the time that one read takes."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        await peer.end(await peer.save(keys(1, count), ack="ssd"))
        await peer.end(await peer.save(keys(1000, count - 4), ack="ssd"))
        world.plan.script(Operation.WRITE, *[Verdict(10 * SECOND_NS)] * 40)
        world.plan.script(Operation.READ, Verdict(SECOND_NS))
        flood = await peer.save(keys(5000, 20), deadline_ms=600_000, ack="ssd")
        await asyncio.sleep(0.5)
        [demoting] = [link for (_, _), link in world.executor.links.items() if link.name == "dram_ssd"]
        assert demoting.running
        assert demoting.waiting > 5
        before = world.loop.now_s
        opened = await peer.ask(Load(0, keys(1, 1), pages(1), 1, deadline_ms=60_000))
        assert (await peer.end(opened.ticket)).outcomes == ["loaded"]
        assert world.loop.now_s - before < 1.1
        assert (await peer.end(flood)).outcomes == ["stored"] * 20
        assert world.loop.now_s - before > 50

    play(tmp_path, scene)


def slow_down(store: FakeStore) -> None:
    """From now on its chunks come a second apart."""
    read = store.read

    async def slowly(block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncIterator[int]:
        async for number in read(block, location, chunks):
            await asyncio.sleep(1.0)
            yield number

    store.read = slowly  # type: ignore[method-assign]


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_first_chunk_is_in_the_worker_while_the_last_is_on_its_way(tmp_path: Path, blocks: int) -> None:
    """From a tier that brings a chunk a second, each chunk is in the worker's memory a second after the one before."""
    chunk_count, block_bytes = GEOMETRY.chunk_count, GEOMETRY.block_bytes

    async def scene(world: World, peer: Peer) -> None:
        length = blocks * block_bytes
        descriptor = create_memory(length)
        view = mmap.mmap(descriptor, length)
        content = os.urandom(length)
        view[:] = content
        message = RegisterMemory(0, length, blocks, GEOMETRY.tokens_per_block, [], "window")
        memory = (await peer.ask(message, descriptor)).memory
        os.close(descriptor)
        await peer.end(await peer.save(keys(1, blocks), ack="ssd", memory=memory))
        stored = view[:]  # as it was, each chunk's padding aside
        await peer.end(await peer.save(keys(1000, BLOCKS_IN_ARENA), ack="ssd"))
        view[:] = bytes(length)
        slow_down(world.store)
        opened = await peer.ask(Load(0, keys(1, blocks), pages(blocks), memory, deadline_ms=60_000))
        began = world.loop.now_s
        offset = 0
        for chunk in range(chunk_count):
            progress = await peer.ask(Wait(0, opened.ticket, chunk, 60_000))
            assert isinstance(progress, Progress)
            assert chunk + 1 <= world.loop.now_s - began < chunk + 1.1
            assert not progress.done or chunk == chunk_count - 1
            here = slice(offset, offset + GEOMETRY.chunk_payload_bytes[chunk])
            offset += GEOMETRY.chunk_bytes[chunk]
            assert view[here] == stored[here]
            assert not any(view[offset:block_bytes])
        assert (await peer.end(opened.ticket)).outcomes == ["loaded"] * blocks

    play(tmp_path, scene)
