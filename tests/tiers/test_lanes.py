"""Copy lanes on threads: the right bytes, in priority order, fenced, and faults only where they belong."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.lanes import CopyTask, CpuLanes, Direction
from flexkv_tiers.memory import Arena
from tests.tiers.paged import GEOMETRY, LAYOUTS, PAGE_COUNT, Layout, Worker, layer_first, stored_chunk, window

FRAME_PAGES = GEOMETRY.frame_bytes // 4096
FRAME_COUNT = 256
PUNCH_HOLE_KEEP_SIZE = 3


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena(FRAME_COUNT * GEOMETRY.frame_bytes, 1)
    yield arena
    arena.close()


class GatedArena(Arena):
    """An arena whose frames nobody gets while its gate is shut; remembers the order they were asked for."""

    def __init__(self) -> None:
        super().__init__(FRAME_COUNT * GEOMETRY.frame_bytes, 1)
        self.gate, self.reached = threading.Event(), threading.Semaphore(0)
        self.order: list[int] = []

    def view(self, frame: int, length: int) -> memoryview:
        self.order.append(frame // FRAME_PAGES)
        self.reached.release()
        assert self.gate.wait(10)
        return super().view(frame, length)


@pytest.fixture
def gated() -> Iterator[GatedArena]:
    arena = GatedArena()
    yield arena
    arena.close()


@pytest.fixture
def lane(gated: GatedArena) -> Iterator[CpuLanes]:
    """One thread, one block per unit, over the gated arena."""
    lanes = CpuLanes(gated, threads=1, bytes_in_flight_max=1)
    yield lanes
    gated.gate.set()
    lanes.close()


@pytest.fixture(scope="module")
def lanes(arena: Arena) -> Iterator[CpuLanes]:
    lanes = CpuLanes(arena)
    yield lanes
    lanes.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(layer_first(GEOMETRY, 8))
    worker.fill(seed=1)
    yield worker
    worker.close()


def task_of(worker: Worker, direction: Direction, rows: list[list[int]], chunk: int = 0) -> CopyTask:
    """A copy of one block per row of pages; block i has key i and frame i."""
    keys = [block.to_bytes(16, "big") for block in range(len(rows))]
    frames = [(block * FRAME_PAGES,) * GEOMETRY.chunk_count for block in range(len(rows))]
    return CopyTask(direction, worker.memory, [chunk], keys, frames, np.array(rows, np.uint32))


def copy_out_and_in(
    arena: Arena, lanes: CpuLanes, worker: Worker, rows: list[list[int]], target: list[list[int]]
) -> None:
    """Save blocks from pages `rows` and load them into pages `target`, every step against the reference."""
    before = worker.bytes[:]
    for chunk, length in enumerate(GEOMETRY.chunk_bytes):
        task = task_of(worker, Direction.OUT_OF_WORKER, rows, chunk)
        for frame, *_ in task.frames:
            arena.view(frame, length)[:] = b"\xee" * length
        assert asyncio.run(lanes.copy(task, Priority.SAVE)) == [None] * len(rows)
        for key, (frame, *_), pages in zip(task.keys, task.frames, rows, strict=True):
            expected = stored_chunk(GEOMETRY, worker.message, before, pages, chunk)
            assert bytes(arena.view(frame, length)) == expected
            assert arena.checksum(frame) == chunk_checksum(key, chunk, expected)
        back = replace(task, direction=Direction.INTO_WORKER, pages=np.array(target, np.uint32))
        assert asyncio.run(lanes.copy(back, Priority.LOAD)) == [None] * len(rows)
        after = worker.bytes[:]
        for old, new in zip(rows, target, strict=True):
            assert stored_chunk(GEOMETRY, worker.message, after, new, chunk) == stored_chunk(
                GEOMETRY, worker.message, before, old, chunk
            )


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(LAYOUTS), st.sampled_from([16, 8, 4]), st.permutations(range(PAGE_COUNT)), st.integers(1, 3))
def test_blocks_come_back_as_they_were(
    arena: Arena, lanes: CpuLanes, layout: Layout, page_tokens: int, pages: list[int], blocks: int
) -> None:
    """Any layout, any pages: the frame holds the reference's bytes and checksum, and loads elsewhere."""
    worker = Worker(layout(GEOMETRY, page_tokens))
    worker.fill(seed=blocks)
    per_block = 16 // page_tokens
    pages = sorted(pages[: PAGE_COUNT // 2]) + pages[PAGE_COUNT // 2 :]  # regular runs on one side
    rows = [pages[block * per_block : (block + 1) * per_block] for block in range(2 * blocks)]
    copy_out_and_in(arena, lanes, worker, rows[:blocks], rows[blocks:])
    worker.close()


def test_a_window_holds_whole_blocks_as_stored(arena: Arena, lanes: CpuLanes) -> None:
    """Chunk c of page p lies at its offset in block p, and what comes back is padded with zeros."""
    worker = Worker(window(GEOMETRY))
    worker.fill(seed=3)
    copy_out_and_in(arena, lanes, worker, [[5], [0]], [[7], [PAGE_COUNT - 1]])
    start = 7 * GEOMETRY.block_bytes + GEOMETRY.chunk_payload_bytes[0]
    assert not any(worker.bytes[start : 7 * GEOMETRY.block_bytes + GEOMETRY.chunk_bytes[0]])
    worker.close()


def test_a_load_overtakes_a_demotion(gated: GatedArena, lane: CpuLanes, worker: Worker) -> None:
    """Between two units the most urgent copy goes first; within a priority, the one that came first."""

    async def run() -> None:
        demotion = task_of(worker, Direction.OUT_OF_WORKER, [[0, 1]] * 3)
        first, second = (task_of(worker, Direction.INTO_WORKER, [[4, 5]]) for _ in range(2))
        first.frames, second.frames = [(7 * FRAME_PAGES,)], [(8 * FRAME_PAGES,)]
        copies = [asyncio.create_task(lane.copy(demotion, Priority.DEMOTION))]
        await asyncio.to_thread(gated.reached.acquire)  # its first block is being copied
        copies += [asyncio.create_task(lane.copy(task, Priority.LOAD)) for task in (first, second)]
        await asyncio.sleep(0)
        gated.gate.set()
        await asyncio.gather(*copies)

    asyncio.run(run())
    assert gated.order == [0, 7, 8, 1, 2]


def test_a_fence_waits_for_the_copies_of_its_pages_only(gated: GatedArena, lane: CpuLanes, worker: Worker) -> None:
    """Pages nobody copies are free at once; pages of a running or queued copy are free when it has ended."""

    async def run() -> None:
        task = task_of(worker, Direction.OUT_OF_WORKER, [[0, 1], [6, 7]])
        copy = asyncio.create_task(lane.copy(task, Priority.SAVE))
        await asyncio.to_thread(gated.reached.acquire)
        assert lane.running(worker.memory) == 1
        await lane.fence(worker.memory, np.array([2, 3], np.uint32))
        fences = [
            asyncio.create_task(lane.fence(worker.memory, pages))
            for pages in (np.array([9, 1], np.uint32), np.array([7], np.uint32), None)
        ]
        await asyncio.sleep(0.01)
        assert not any(fence.done() for fence in fences)
        gated.gate.set()
        await asyncio.gather(*fences)
        assert lane.running(worker.memory) == 0
        assert await copy == [None, None]

    asyncio.run(run())


def test_a_fence_waits_even_when_the_caller_is_cancelled(gated: GatedArena, lane: CpuLanes, worker: Worker) -> None:
    """A cancelled caller leaves a running copy behind, which the fence still knows of."""

    async def run() -> None:
        task = task_of(worker, Direction.OUT_OF_WORKER, [[6, 7]])
        copy = asyncio.create_task(lane.copy(task, Priority.SAVE))
        await asyncio.to_thread(gated.reached.acquire)
        copy.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copy
        impatient, patient = (asyncio.create_task(lane.fence(worker.memory)) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0.01)
        assert lane.running(worker.memory) == 1
        assert not patient.done()
        gated.gate.set()
        await patient
        assert lane.running(worker.memory) == 0

    asyncio.run(run())


def spoil_memory(task: CopyTask) -> None:
    task.memory.close()


def spoil_page(task: CopyTask) -> None:
    task.pages[1, 0] = 10 * PAGE_COUNT


def spoil_frame(task: CopyTask) -> None:
    task.frames[1] = (FRAME_COUNT * FRAME_PAGES,) * GEOMETRY.chunk_count


@pytest.mark.parametrize(
    ("spoil", "faults"),
    [
        (spoil_memory, [Fault.MEMORY] * 3),
        (spoil_page, [None, Fault.MEMORY, None]),
        (spoil_frame, [None, Fault.INTERNAL, None]),
    ],
)
@pytest.mark.parametrize("direction", list(Direction))
def test_a_copy_that_fails_is_a_fault_of_its_block_alone(
    lanes: CpuLanes,
    worker: Worker,
    spoil: Callable[[CopyTask], None],
    faults: list[Fault | None],
    direction: Direction,
) -> None:
    """Memory that is gone, a page outside, a wrong frame: data in the result, no exception, the rest is copied."""
    task = task_of(worker, direction, [[0, 1], [2, 3], [4, 5]])
    spoil(task)
    assert asyncio.run(lanes.copy(task, Priority.LOAD)) == faults
    assert lanes.running(worker.memory) == 0


def test_several_chunks_of_a_block_go_together(arena: Arena, lanes: CpuLanes, worker: Worker) -> None:
    """One copy brings all chunks it names into their own frames, and no other; a fault is the block's as a whole."""
    rows, chunks = [[0, 1], [4, 9]], [0, 2, 3]
    keys = [block.to_bytes(16, "big") for block in range(2)]
    frames = [tuple((block * 4 + chunk) * FRAME_PAGES for chunk in range(4)) for block in range(2)]
    for number, length in ((frame, GEOMETRY.chunk_bytes[chunk]) for each in frames for chunk, frame in enumerate(each)):
        arena.view(number, length)[:] = b"\xee" * length
    task = CopyTask(Direction.OUT_OF_WORKER, worker.memory, chunks, keys, frames, np.array(rows, np.uint32))
    assert asyncio.run(lanes.copy(task, Priority.SAVE)) == [None, None]
    for key, each, pages in zip(keys, frames, rows, strict=True):
        for chunk, frame in enumerate(each):
            content = bytes(arena.view(frame, GEOMETRY.chunk_bytes[chunk]))
            expected = stored_chunk(GEOMETRY, worker.message, worker.bytes[:], pages, chunk)
            assert content == (expected if chunk in chunks else b"\xee" * len(content))
            assert chunk not in chunks or arena.checksum(frame) == chunk_checksum(key, chunk, expected)
    spoil_page(task)
    assert asyncio.run(lanes.copy(task, Priority.SAVE)) == [None, Fault.MEMORY]


def test_faults_and_bytes_are_counted(arena: Arena, worker: Worker) -> None:
    """The status shows what was copied each way and what failed."""
    lanes = CpuLanes(arena)
    task = task_of(worker, Direction.OUT_OF_WORKER, [[0, 1], [2, 3]], chunk=2)
    spoil_page(task)
    asyncio.run(lanes.copy(task, Priority.SAVE))
    lanes.close()
    status = lanes.status()
    assert status["bytes"] == {"into_worker": 0, "out_of_worker": GEOMETRY.chunk_bytes[2]}
    assert status["faults"] == {"memory": 1}


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    assert libc.fallocate(descriptor, PUNCH_HOLE_KEEP_SIZE, offset, length) == 0


def test_a_hole_in_worker_memory_reads_as_zeros_and_fills_again(arena: Arena, lanes: CpuLanes) -> None:
    """F_SEAL_SHRINK lets a worker punch holes: a save then stores zeros, a load writes into it, nothing dies."""
    worker = Worker(layer_first(GEOMETRY, 8))
    worker.fill(seed=2)
    rows = [[page, page + 1] for page in range(0, PAGE_COUNT, 2)]
    copy_out_and_in(arena, lanes, worker, rows, rows)
    punch_hole(worker.descriptor, 0, worker.message.bytes)
    copy_out_and_in(arena, lanes, worker, rows, rows)
    punch_hole(worker.descriptor, 0, worker.message.bytes)
    task = task_of(worker, Direction.INTO_WORKER, rows)
    for frame, *_ in task.frames:
        arena.view(frame, GEOMETRY.chunk_bytes[0])[:] = b"\x55" * GEOMETRY.chunk_bytes[0]
    assert not any(asyncio.run(lanes.copy(task, Priority.LOAD)))
    stored = stored_chunk(GEOMETRY, worker.message, worker.bytes[:], rows[-1], 0)
    assert set(stored[: GEOMETRY.chunk_payload_bytes[0]]) == {0x55}
    worker.close()


def test_holes_punched_during_copies_hurt_nobody(arena: Arena, lanes: CpuLanes, worker: Worker) -> None:
    """A worker that punches all the while its blocks are saved and loaded gets zeros; no copy fails."""
    stop = threading.Event()

    def punch() -> None:
        random = Random(1)
        while not stop.is_set():
            punch_hole(worker.descriptor, random.randrange(0, worker.message.bytes, 4096), 8192)

    puncher = threading.Thread(target=punch)
    puncher.start()
    rows = [[page, page + 1] for page in range(0, PAGE_COUNT, 2)]
    for turn in range(60):
        direction = list(Direction)[turn % 2]
        assert not any(asyncio.run(lanes.copy(task_of(worker, direction, rows, turn % 4), Priority.SAVE)))
    stop.set()
    puncher.join()


def test_closing_ends_threads_and_tells_who_waits(gated: GatedArena, worker: Worker) -> None:
    """What runs ends, what had not begun is DOWN, later copies too; no thread is left."""
    threads = threading.enumerate()

    async def run() -> None:
        lanes = CpuLanes(gated, threads=2, bytes_in_flight_max=1)
        copy = asyncio.create_task(
            lanes.copy(task_of(worker, Direction.INTO_WORKER, [[0, 1]] * FRAME_COUNT), Priority.LOAD)
        )
        for _ in range(2):  # until both threads hold a block
            await asyncio.to_thread(gated.reached.acquire)
        opener = threading.Timer(0.05, gated.gate.set)
        opener.start()
        lanes.close()
        lanes.close()
        opener.join()
        assert lanes.running(worker.memory) == 0
        assert await copy == [None] * 2 + [Fault.DOWN] * (FRAME_COUNT - 2)
        assert await lanes.copy(task_of(worker, Direction.INTO_WORKER, [[0, 1]]), Priority.LOAD) == [Fault.DOWN]

    asyncio.run(run())
    assert not [thread for thread in set(threading.enumerate()) - set(threads) if thread.name.startswith("copy-lane")]
