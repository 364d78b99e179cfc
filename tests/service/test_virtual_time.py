"""What takes minutes: deadlines, leases, late and slow transfers, on a clock that jumps.

The planner, the server, the executor and the lanes are the real ones; the tier is the fake one, because
only that can be told to be slow.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import create_memory
from flexkv_py.core.forecast import SAMPLES_MIN
from flexkv_py.core.messages import Fault, RecoveryFinished, Tier
from flexkv_py.core.planner import Planner
from flexkv_py.wire.codec import decode_daemon, encode
from flexkv_py.wire.framing import FrameDecoder
from flexkv_py.wire.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    DaemonMessage,
    Done,
    Failed,
    Fence,
    Hello,
    Load,
    Match,
    Matched,
    Opened,
    Ping,
    Progress,
    RegisterMemory,
    Save,
    UnregisterMemory,
    Wait,
)
from flexkv_tiers.fake import FakeRecords, FakeStore, FaultPlan, Operation, Verdict
from flexkv_tiers.lanes import CpuLanes
from flexkv_tiers.memory import Arena
from flexkvd import socket_file
from flexkvd.config import Config, parse_config
from flexkvd.devices import Devices
from flexkvd.engine import Engine
from flexkvd.executor import Executor, TierLimits
from flexkvd.facts import facts_of
from flexkvd.planning import planner_config
from flexkvd.requests import Requests
from flexkvd.row_path import RowPath
from flexkvd.server import Gate, Server
from flexkvd.sessions import Sessions
from tests import invariants

from .conftest import GEOMETRY
from .virtual_loop import VirtualLoop

SECOND_NS = 1_000_000_000
SEGMENT_BYTES = 1 << 20
BLOCKS_IN_ARENA = SEGMENT_BYTES // (GEOMETRY.frame_bytes * GEOMETRY.chunk_count)
WINDOW_BLOCKS = 64


class World:
    """A daemon's parts and one greeted client with a window of blocks, all on one virtual loop."""

    def __init__(
        self, path: Path, stack: AsyncExitStack, loop: VirtualLoop, make_arena: Callable[..., Arena] = Arena
    ) -> None:
        self.loop, self.path, self.plan = loop, path, FaultPlan()
        self.config: Config = parse_config(
            {
                "dram": {"bytes": "1MiB", "segment_bytes": "1MiB", "huge_pages": False},
                "ssd": {"directory": "unused", "bytes": "64MiB"},
                "planner": {"clean_ahead": 0.0},
            }
        )
        arena = make_arena(SEGMENT_BYTES, 1, huge_pages=False)
        stack.callback(arena.close)
        self.lanes = CpuLanes(arena, threads=1)
        stack.callback(self.lanes.close)
        loop.busy = lambda: bool(self.lanes.status()["jobs"])
        self.planner = Planner(planner_config(self.config))
        self.engine = Engine(self.planner, loop, loop.now_ns)
        self.sessions = Sessions(self.engine, self.config.limits)
        self.store = FakeStore(FakeRecords(64 << 20), arena, self.plan)
        limits = TierLimits(2, 2, bytes_in_flight_max=1, transfer_s_max=30.0)
        self.executor = Executor(self.engine, self.sessions, self.lanes, {Tier.SSD: (self.store, limits)}, loop)
        devices = Devices(self.config.cuda, arena, self.lanes)
        row_path = RowPath(self.engine, self.sessions, arena, self.config, loop)
        tiers, limits_of = (Tier.DRAM, Tier.SSD), self.config.limits
        requests = Requests(self.engine, self.sessions, limits_of, tiers, (), row_path, devices, loop)
        listener = socket_file.listen(str(path), 0o600)
        stack.callback(listener.close)
        gate = Gate(os.getuid(), frozenset(), frozenset(), "")
        server = Server(
            listener.socket, requests, self.sessions, gate, self.config.limits, b"boot", SEGMENT_BYTES, loop
        )
        stack.callback(server.close)

    async def client(self) -> "Peer":
        await self.store.start()
        self.engine.post(RecoveryFinished(Tier.SSD, self.loop.now_ns()))
        peer = Peer(self)
        await peer.ask(Hello(0, PROTOCOL_VERSION, GEOMETRY))
        descriptor = create_memory(WINDOW_BLOCKS * GEOMETRY.block_bytes)
        register = RegisterMemory(
            0, WINDOW_BLOCKS * GEOMETRY.block_bytes, WINDOW_BLOCKS, GEOMETRY.tokens_per_block, [], "window"
        )
        await peer.ask(register, descriptor)
        os.close(descriptor)
        return peer


class Peer:
    """A client that asks one thing at a time, or several at once."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(world.path))
        self._socket.setblocking(False)
        self._frames = FrameDecoder()
        self._replies: dict[int, asyncio.Future[DaemonMessage]] = {}
        self._last = 0
        self._reader = self._loop.create_task(self._read())

    async def ask(self, message: ClientMessage, *descriptors: int) -> Any:
        self._last += 1
        message.id = self._last
        reply = self._replies[message.id] = self._loop.create_future()
        socket.send_fds(self._socket, [encode(message)], list(descriptors))
        return await reply

    async def save(self, keys: bytes, *, deadline_ms: int = 10_000, ack: str = "dram", memory: int = 1) -> int:
        opened = await self.ask(Save(0, keys, pages(len(keys) // 16), memory, deadline_ms=deadline_ms, ack=ack))
        assert isinstance(opened, Opened)
        return opened.ticket

    async def end(self, ticket: int) -> Progress:
        progress = await self.ask(Wait(0, ticket, -1, 600_000))
        assert isinstance(progress, Progress)
        assert progress.done
        return progress

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._socket.close()

    async def _read(self) -> None:
        while data := await self._loop.sock_recv(self._socket, 1 << 16):
            for body in self._frames.feed(data):
                reply = decode_daemon(body)
                self._replies.pop(reply.id).set_result(reply)


def keys(first: int, count: int) -> bytes:
    return b"".join(number.to_bytes(16, "big") for number in range(first, first + count))


def pages(count: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in range(count))


Play = Callable[[Callable[[World, Peer], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene on virtual time; the invariants are checked when it ends."""

    def play(scene: Callable[[World, Peer], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            async with AsyncExitStack() as stack:
                world = World(tmp_path / "worker.sock", stack, loop)
                peer = await world.client()
                await scene(world, peer)
                await peer.close()
                await world.executor.settle()
                invariants.check(world.planner)
                world.engine.close()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(run())

    return play


def test_a_lease_ends_with_its_time(play: Play) -> None:
    """A lease is there a moment before its hold time is over, and gone a moment after."""

    async def scene(world: World, peer: Peer) -> None:
        await peer.end(await peer.save(keys(1, 3)))
        matched = await peer.ask(Match(0, keys(1, 3), hold_ms=300_000))
        assert isinstance(matched, Matched)
        assert matched.lease
        await asyncio.sleep(299)
        assert facts_of(world.planner.state)["leases"] == 1
        await asyncio.sleep(2)
        assert facts_of(world.planner.state)["leases"] == 0

    play(scene)


def test_a_save_without_room_is_throttled_at_its_deadline(play: Play) -> None:
    """When DRAM is pinned by a lease and nothing can leave, a save waits for its deadline and is told when to retry."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        await peer.end(await peer.save(keys(1, count)))
        matched = await peer.ask(Match(0, keys(1, count), hold_ms=600_000))
        assert matched.length == count
        world.plan.script(Operation.WRITE, *[Verdict(3600 * SECOND_NS)] * 100)
        before = world.loop.now_s
        progress = await peer.end(await peer.save(keys(1000, 2), deadline_ms=20_000))
        assert progress.outcomes == ["throttled"] * 2
        assert progress.retry_after_ms > 0
        assert 20 <= world.loop.now_s - before < 21

    play(scene)


def test_a_ping_is_answered_between_the_slices_of_a_large_save(play: Play) -> None:
    """Whoever pings while sixty keys are being placed is answered when a few of them are, and the save loses none."""

    async def scene(world: World, peer: Peer) -> None:
        state, other = world.planner.state, Peer(world)
        state.config = replace(state.config, keys_per_event_max=1)
        await other.ask(Hello(0, PROTOCOL_VERSION, GEOMETRY))
        saved = world.loop.create_task(peer.save(keys(1, 60)))
        await asyncio.sleep(0)  # it is on the socket
        await other.ask(Ping(0))
        [session] = state.arrivals
        assert 0 < session.arrived[0].seen < 60
        assert (await peer.end(await saved)).outcomes == ["stored"] * 60
        await other.close()

    play(scene)


def test_a_wait_answers_when_its_time_is_over(play: Play) -> None:
    """A wait on a ticket that does not end is answered after its timeout with how far it is."""

    async def scene(world: World, peer: Peer) -> None:
        world.plan.script(Operation.WRITE, Verdict(20 * SECOND_NS))
        ticket = await peer.save(keys(1, 1), deadline_ms=60_000, ack="ssd")
        before = world.loop.now_s
        progress = await peer.ask(Wait(0, ticket, -1, 5_000))
        assert not progress.done
        assert 5 <= world.loop.now_s - before < 5.1
        assert (await peer.end(ticket)).outcomes == ["stored"]
        assert 20 <= world.loop.now_s - before < 21

    play(scene)


def test_a_transfer_that_hangs_is_late(play: Play) -> None:
    """A write that never returns ends at the tier's limit and is counted as late; another one is tried in time."""

    async def scene(world: World, peer: Peer) -> None:
        world.plan.script(Operation.WRITE, Verdict(3600 * SECOND_NS))
        progress = await peer.end(await peer.save(keys(1, 1), deadline_ms=120_000, ack="ssd"))
        assert world.executor.traffic.faults["dram_ssd", Fault.LATE.value] == 1
        assert progress.outcomes == ["stored"]

    play(scene)


def test_a_bug_in_a_tier_ends_one_transfer(play: Play) -> None:
    """Whatever a store raises becomes a counted internal fault; the daemon serves on."""

    async def scene(world: World, peer: Peer) -> None:
        async def broken(*_: object) -> int:
            raise ZeroDivisionError

        world.store.write = broken  # type: ignore[method-assign]
        await peer.end(await peer.save(keys(1, 1), ack="ssd"))
        assert world.executor.traffic.faults["dram_ssd", Fault.INTERNAL.value] >= 1
        assert (await peer.ask(Match(0, keys(1, 1)))).length == 1

    play(scene)


def test_a_load_from_below_lands_chunk_by_chunk(play: Play) -> None:
    """Blocks evicted to the tier below are promoted for a load, which ends with all chunks in the worker."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        await peer.end(await peer.save(keys(1, count), ack="ssd"))
        await peer.end(await peer.save(keys(1000, count), ack="ssd"))
        matched = await peer.ask(Match(0, keys(1, 4)))
        assert [(run.tier, run.count) for run in matched.runs] == [("ssd", 4)]
        world.plan.script(Operation.READ, *[Verdict(SECOND_NS)] * 4)
        opened = await peer.ask(Load(0, keys(1, 4), pages(4), 1, deadline_ms=60_000))
        first = await peer.ask(Wait(0, opened.ticket, 0, 60_000))
        assert first.chunks >= 1
        progress = await peer.end(opened.ticket)
        assert (progress.outcomes, progress.tiers) == (["loaded"] * 4, bytes([Tier.SSD]) * 4)
        assert world.executor.traffic.bytes["ssd_dram"] == 4 * GEOMETRY.block_bytes
        assert 2 <= world.loop.now_s < 3  # two at a time, one second each

    play(scene)


def test_fence_and_unregister_wait_for_copies_to_come(play: Play) -> None:
    """A fence waits for a load whose copies are still to start; unregister cancels it instead."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        await peer.end(await peer.save(keys(1, count), ack="ssd"))
        await peer.end(await peer.save(keys(1000, count), ack="ssd"))
        world.plan.script(Operation.READ, *[Verdict(10 * SECOND_NS)] * 4)
        await peer.ask(Load(0, keys(1, 1), pages(1), 1, deadline_ms=60_000))
        before = world.loop.now_s
        assert isinstance(await peer.ask(Fence(0, 1, (5).to_bytes(4, "little"))), Done)
        assert world.loop.now_s - before < 1
        assert isinstance(await peer.ask(Fence(0, 1, (0).to_bytes(4, "little"))), Done)
        assert world.loop.now_s - before >= 10
        await peer.ask(Load(0, keys(2, 1), pages(1), 1, deadline_ms=60_000))
        before = world.loop.now_s
        assert isinstance(await peer.ask(UnregisterMemory(0, 1)), Done)
        assert world.loop.now_s - before < 1
        assert (await peer.ask(Fence(0, 1))).code == "unknown_memory"

    play(scene)


def test_a_deadline_over_the_limit_is_refused(play: Play) -> None:
    """Deadlines beyond the configured maximum are refused with the range, none means the default."""

    async def scene(world: World, peer: Peer) -> None:
        refused = await peer.ask(Save(0, keys(1, 1), pages(1), 1, deadline_ms=10**9))
        assert isinstance(refused, Failed)
        assert (refused.code, "600000" in refused.message) == ("bad_argument", True)

    play(scene)


def test_a_load_that_must_come_late_is_answered_at_once(play: Play) -> None:
    """A tier has shown that a read takes three seconds: a load with one second left is told late without waiting."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        assert count > SAMPLES_MIN
        await peer.end(await peer.save(keys(1, count), ack="ssd"))
        await peer.end(await peer.save(keys(1000, count), ack="ssd"))
        world.plan.script(Operation.READ, *[Verdict(3 * SECOND_NS)] * count)
        for number in range(SAMPLES_MIN):
            opened = await peer.ask(Load(0, keys(1 + number, 1), pages(1), 1, deadline_ms=60_000))
            assert (await peer.end(opened.ticket)).outcomes == ["loaded"]
        before = world.loop.now_s
        wanted = keys(1, 1) + keys(1000, 2)
        opened = await peer.ask(Load(0, wanted, pages(3), 1, deadline_ms=1_000))
        progress = await peer.end(opened.ticket)
        assert progress.outcomes == ["loaded", "late", "late"]
        assert "block 1 would arrive from ssd in 3 s, the deadline is in 1 s" in progress.detail
        assert world.loop.now_s - before < 0.1

    play(scene)


def test_a_read_whose_turn_comes_too_late_is_not_begun(play: Play) -> None:
    """Reads that still wait on the link when their load is over make room; the one that runs lands for others."""

    async def scene(world: World, peer: Peer) -> None:
        count = BLOCKS_IN_ARENA
        await peer.end(await peer.save(keys(1, count), ack="ssd"))
        await peer.end(await peer.save(keys(1000, count), ack="ssd"))
        world.plan.script(Operation.READ, *[Verdict(10 * SECOND_NS)] * 6)
        before = world.loop.now_s
        hurried = await peer.ask(Load(0, keys(1, 6), pages(6), 1, deadline_ms=5_000))
        patient = await peer.ask(Load(0, keys(5, 2), pages(8)[-8:], 1, deadline_ms=60_000))
        assert set((await peer.end(hurried.ticket)).outcomes) == {"late"}
        assert (await peer.end(patient.ticket)).outcomes == ["loaded"] * 2
        assert 20 <= world.loop.now_s - before < 21  # two at a time: the hurried two, then the patient two
        assert world.executor.traffic.bytes["ssd_dram"] == 4 * GEOMETRY.block_bytes

    play(scene)
