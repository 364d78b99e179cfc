"""What every kind of lanes promises, run on each: threads over host memory, CUDA lanes over a driver of the host,
with and without batched copies, and CUDA lanes on a device where there is one.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from flexkv_py.core.messages import Fault, Priority
from flexkv_py.wire.gates import has_failed, is_open
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.lanes import CopyTask, CpuLanes, Direction
from flexkv_tiers.lanes.base import AwaitedEvent
from flexkv_tiers.memory.gates import Gate
from tests.tiers.lane_rigs import FRAME_COUNT, FRAME_PAGES, Rig, Side, rig_of
from tests.tiers.paged import GEOMETRY, LAYOUTS, PAGE_COUNT, Layout, layer_first, stored_chunk, window


def no_device() -> str:
    """Why there is nothing to run on; empty if there is."""
    if not Path("/dev/nvidiactl").exists():  # before torch is imported: that takes a second or two
        return "no NVIDIA device here"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device here, or a torch without CUDA"
    return "" if importlib.util.find_spec("cuda.bindings") else "cuda-bindings is not installed"


@pytest.fixture(scope="module", params=["cpu", "driver", "driver-2d", pytest.param("device", marks=[pytest.mark.gpu])])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "device" and (why := no_device()):
        pytest.skip(why)
    with rig_of(request.param) as rig:
        yield rig


@pytest.fixture
def worker(rig: Rig) -> Iterator[Side]:
    side = rig.side(layer_first(GEOMETRY, 8))
    side.write(Random(1).randbytes(len(side.read())))
    yield side
    side.close()


MESSAGE = layer_first(GEOMETRY, 8)
GATED = msgspec.structs.replace(MESSAGE, bytes=MESSAGE.bytes + 16)
"""Room for a gate of each chunk behind the pages."""
GATED_ROWS = [[2 * block, 2 * block + 1] for block in range(6)]


def task_of(side: Side, direction: Direction, rows: list[list[int]], *chunks: int) -> CopyTask:
    """A copy of one block per row of pages; block i has key i, and its chunk c lies in frame 4i + c."""
    keys = [block.to_bytes(16, "big") for block in range(len(rows))]
    frames = [tuple((4 * block + chunk) * FRAME_PAGES for chunk in range(4)) for block in range(len(rows))]
    return CopyTask(direction, side.memory, list(chunks), keys, frames, np.array(rows, np.uint32))


def run(rig: Rig, task: CopyTask) -> list[Fault | None]:
    async def copy() -> list[Fault | None]:
        return await rig.lanes.copy(task, Priority.LOAD)

    return asyncio.run(copy())


def check_stored(rig: Rig, task: CopyTask, message: object, content: bytes, rows: list[list[int]]) -> None:
    """Every frame holds the reference's bytes, padding and checksum."""
    for key, frames, pages in zip(task.keys, task.frames, rows, strict=True):
        for chunk in task.chunks:
            expected = stored_chunk(GEOMETRY, message, content, pages, chunk)  # type: ignore[arg-type]
            assert bytes(rig.arena.view(frames[chunk], GEOMETRY.chunk_bytes[chunk])) == expected
            assert rig.arena.checksum(frames[chunk]) == chunk_checksum(key, chunk, expected)


@pytest.mark.parametrize("page_tokens", [16, 4])
@pytest.mark.parametrize("layout", [*LAYOUTS, lambda geometry, _: window(geometry)])
def test_blocks_come_back_as_they_were(rig: Rig, layout: Layout, page_tokens: int) -> None:
    """Any layout, any pages: frames hold the reference's bytes and checksums, and load into other pages."""
    message, random = layout(GEOMETRY, page_tokens), Random(page_tokens)
    side = rig.side(message)
    content = random.randbytes(message.bytes)
    side.write(content)
    per_block = 16 // message.page_tokens
    pages = list(range(PAGE_COUNT // 2)) + random.sample(range(PAGE_COUNT // 2, PAGE_COUNT), PAGE_COUNT // 2)
    rows = [pages[at : at + per_block] for at in range(0, PAGE_COUNT, per_block)][-6:]
    rows[0] = pages[:per_block]  # pages in a row: copies that merge
    for number in range(24):
        rig.arena.view(number * FRAME_PAGES, 4096)[:] = b"\xee" * 4096
    task = task_of(side, Direction.OUT_OF_WORKER, rows[:3], 0, 1, 2, 3)
    assert run(rig, task) == [None] * 3
    check_stored(rig, task, message, content, rows[:3])
    back = replace(task, direction=Direction.INTO_WORKER, pages=np.array(rows[3:], np.uint32))
    assert run(rig, back) == [None] * 3
    for old, new in zip(rows[:3], rows[3:], strict=True):
        for chunk in range(4):
            ours = stored_chunk(GEOMETRY, message, side.read(), new, chunk)
            assert ours == stored_chunk(GEOMETRY, message, content, old, chunk)
    side.close()


def test_loading_touches_only_the_pages_named(rig: Rig, worker: Side) -> None:
    """Rows of other pages and other chunks stay as they were, byte for byte."""
    before = np.frombuffer(worker.read(), np.uint8)
    rig.arena.view(FRAME_PAGES, GEOMETRY.chunk_bytes[1])[:] = b"\xaa" * GEOMETRY.chunk_bytes[1]
    assert run(rig, task_of(worker, Direction.INTO_WORKER, [[3, 9]], 1)) == [None]
    changed = set(np.flatnonzero(before != np.frombuffer(worker.read(), np.uint8)).tolist())
    places = {(entry.plane, entry.layer): entry for entry in MESSAGE.layout}
    pieces = [places[piece.plane, piece.layer] for piece in GEOMETRY.chunk_pieces[1]]
    starts = [(entry.offset + page * entry.page_stride, entry.page_bytes) for entry in pieces for page in (3, 9)]
    assert changed
    assert changed <= {at for start, length in starts for at in range(start, start + length)}


def spoil_page(task: CopyTask) -> None:
    task.pages[1, 0] = 10 * PAGE_COUNT


def spoil_frame(task: CopyTask) -> None:
    task.frames[1] = (FRAME_COUNT * FRAME_PAGES,) * GEOMETRY.chunk_count


@pytest.mark.parametrize(("spoil", "fault"), [(spoil_page, Fault.MEMORY), (spoil_frame, Fault.INTERNAL)])
@pytest.mark.parametrize("direction", list(Direction))
def test_a_copy_that_fails_is_a_fault_of_its_block_alone(
    rig: Rig, worker: Side, spoil: Callable[[CopyTask], None], fault: Fault, direction: Direction
) -> None:
    """A page outside, a frame that is none: data in the result, no exception, and the others are copied."""
    task = task_of(worker, direction, [[0, 1], [2, 3], [4, 5]], 0)
    spoil(task)
    assert run(rig, task) == [None, fault, None]
    assert rig.lanes.running(worker.memory) == 0


def test_memory_that_is_closed_is_a_fault(rig: Rig) -> None:
    """Copies that begin after their memory was closed touch nothing."""
    side = rig.side(MESSAGE)
    task = task_of(side, Direction.OUT_OF_WORKER, [[0, 1], [2, 3]], 0)
    side.close()
    assert run(rig, task) == [Fault.MEMORY] * 2


def gate_word(side: Side, gate: Gate) -> int:
    return int.from_bytes(side.read()[gate.offset : gate.offset + 4], "little")


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_gate_opens_behind_its_copies(rig: Rig, worker: Side, spoiled: bool) -> None:
    """After a task's end its gates are open: even where all was copied, odd where a block failed; no other is."""
    rows = [[block % 10, 10 + block % 10] for block in range(12)]
    task = task_of(worker, Direction.INTO_WORKER, rows, 0, 1)
    at = 8 * (MESSAGE.bytes // 8) - 8  # bytes of a page nobody copies
    worker.write(bytes(MESSAGE.bytes))
    gate, other = Gate(at, 7, len(rows)), Gate(at + 4, 7, len(rows))
    task.gates = {1: gate}
    if spoiled:
        spoil_page(task)
    run(rig, task)
    assert is_open(gate_word(worker, gate), 7)
    assert not is_open(gate_word(worker, gate), 8)
    assert gate_word(worker, gate) == (15 if spoiled else 14)
    assert gate_word(worker, other) == 0


def gates_of(blocks: int, generation: int = 1) -> dict[int, Gate]:
    return {chunk: Gate(MESSAGE.bytes + 4 * chunk, generation, blocks) for chunk in range(4)}


def look(side: Side) -> tuple[bytes, list[int]]:
    """The rows, read after the words of the gates, of which the last is read first: others may open meanwhile."""
    values = [gate_word(side, gate) for gate in reversed(gates_of(0).values())]
    return side.read(), values[::-1]


@pytest.mark.parametrize("chunks", [[(0, 1, 2, 3)], [(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)]])
def test_gates_shared_by_tasks_open_behind_all_their_copies(rig: Rig, chunks: list[tuple[int, ...]]) -> None:
    """Looked at all the while: where a gate is open every block has its chunk; on a stream they open in order."""
    side, random = rig.side(GATED), Random(9)
    for frame in range(24):
        rig.arena.view(frame * FRAME_PAGES, 4096)[:] = random.randbytes(4096)
    stored = [bytes(rig.arena.view(frame * FRAME_PAGES, 4096)) for frame in range(24)]
    side.write(bytes(GATED.bytes))
    gates, seen = gates_of(len(GATED_ROWS)), []

    async def copy() -> None:
        tasks = [task_of(side, Direction.INTO_WORKER, GATED_ROWS, *part) for part in chunks]
        halves = [
            replace(task, keys=task.keys[part], frames=task.frames[part], pages=task.pages[part])
            for task in tasks
            for part in (slice(0, 2), slice(2, 6))
        ]
        copying = []
        for task in halves:
            task.gates = {chunk: gates[chunk] for chunk in task.chunks}
            copying.append(asyncio.create_task(rig.lanes.copy(task, Priority.LOAD)))
            await asyncio.sleep(0)
        while not all(each.done() for each in copying):
            seen.append(look(side))
            await asyncio.sleep(0)
        seen.append(look(side))

    asyncio.run(copy())
    assert seen[-1][1] == [2] * 4
    for content, values in seen:
        if not isinstance(rig.lanes, CpuLanes):  # whose threads may end two chunks the other way round
            assert values == sorted(values, reverse=True)
        for chunk in (chunk for chunk, value in enumerate(values) if value):
            for block, pages in enumerate(GATED_ROWS):
                payload_bytes = GEOMETRY.chunk_payload_bytes[chunk]
                ours = stored_chunk(GEOMETRY, GATED, content, pages, chunk)[:payload_bytes]
                assert ours == stored[4 * block + chunk][:payload_bytes]
    side.close()


def test_one_task_that_fails_spoils_the_gates_it_shares(rig: Rig) -> None:
    """The last task opens them as failed, though all of its own blocks are there."""
    side = rig.side(GATED)
    gates = gates_of(4)
    bad, good = (task_of(side, Direction.INTO_WORKER, rows, 0, 1) for rows in (GATED_ROWS[:2], GATED_ROWS[2:4]))
    bad.gates = good.gates = {chunk: gates[chunk] for chunk in (0, 1)}
    spoil_page(bad)
    run(rig, bad)
    assert look(side)[1] == [0] * 4
    assert run(rig, good) == [None] * 2
    assert look(side)[1] == [3, 3, 0, 0]
    side.close()


def test_gates_that_are_given_up_open_once_as_failed(rig: Rig) -> None:
    """A task of no blocks opens what is shut and nothing else; copies that come later write no gate again."""
    side = rig.side(GATED)
    gates = gates_of(2, generation=9)
    whole = task_of(side, Direction.INTO_WORKER, GATED_ROWS[:2], 0)
    whole.gates = {0: gates[0]}
    assert run(rig, whole) == [None] * 2
    given_up = task_of(side, Direction.INTO_WORKER, [], 0, 1, 2, 3)
    given_up.pages = np.empty((0, 2), np.uint32)
    given_up.gates = gates
    assert run(rig, given_up) == []
    assert look(side)[1] == [18, 19, 19, 19]
    assert all(is_open(value, 9) for value in look(side)[1])
    assert [has_failed(value) for value in look(side)[1]] == [False, True, True, True]
    side.write(bytes(GATED.bytes))
    late = task_of(side, Direction.INTO_WORKER, GATED_ROWS[:2], 1, 2, 3)
    late.gates = {chunk: gates[chunk] for chunk in (1, 2, 3)}
    assert run(rig, late) == [None] * 2
    assert look(side)[1] == [0] * 4
    side.close()


def test_a_save_reads_what_was_written_before_the_workers_event(rig: Rig, worker: Side) -> None:
    """Started while the worker's own stream has not come to the write; every task of the ticket waits for it."""
    if isinstance(rig.lanes, CpuLanes):
        pytest.skip("memory of the host has no streams")
    content = Random(11).randbytes(MESSAGE.bytes)
    after = AwaitedEvent(worker.write_behind_event(content))

    async def save() -> None:
        tasks = [task_of(worker, Direction.OUT_OF_WORKER, [[0, 1], [6, 7]], *part) for part in ((0, 1), (2, 3))]
        for task in tasks:
            task.after = after
        faults = await asyncio.gather(*(rig.lanes.copy(task, Priority.SAVE) for task in tasks))
        assert faults == [[None, None]] * 2
        for task in tasks:
            check_stored(rig, task, MESSAGE, content, [[0, 1], [6, 7]])

    asyncio.run(save())


def test_a_fence_returns_when_the_copies_have_ended(rig: Rig, worker: Side) -> None:
    """Pages nobody copies are free at once; the memory is free when what was started has ended, wanted or not."""

    async def start_and_fence() -> None:
        ended: list[list[Fault | None]] = []
        task = task_of(worker, Direction.OUT_OF_WORKER, [[0, 1], [6, 7]], 0, 1, 2, 3)
        rig.lanes.start(task, Priority.SAVE, ended.append)
        assert rig.lanes.running(worker.memory) == 1
        await rig.lanes.fence(worker.memory, np.array([2, 3], np.uint32))
        await rig.lanes.fence(worker.memory)
        assert ended == [[None, None]]
        assert rig.lanes.running(worker.memory) == 0

    asyncio.run(start_and_fence())


def test_many_copies_share_the_lanes(rig: Rig, worker: Side) -> None:
    """Fifty copies of both directions and any priority at a time all end with the right bytes."""
    content, random = worker.read(), Random(3)

    async def save(number: int) -> None:
        pages, chunk = random.sample(range(PAGE_COUNT), 2), number % 4
        task = task_of(worker, Direction.OUT_OF_WORKER, [pages], chunk)
        task.frames = [(number * FRAME_PAGES,) * 4]
        assert await rig.lanes.copy(task, random.choice(list(Priority))) == [None]
        check_stored(rig, task, MESSAGE, content, [pages])
        back = replace(task, direction=Direction.INTO_WORKER)
        assert await rig.lanes.copy(back, random.choice(list(Priority))) == [None]

    async def all_of_them() -> None:
        await asyncio.gather(*(save(number) for number in range(50)))

    asyncio.run(all_of_them())
    assert worker.read() == content


def test_an_empty_copy_ends_at_once(rig: Rig, worker: Side) -> None:
    """No blocks, no outcomes."""
    assert run(rig, task_of(worker, Direction.INTO_WORKER, [], 0)) == []
