"""What a worker may register, and what is refused before it can hurt."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.wire.messages import GateArray, RegisterMemory
from flexkv_tiers.base import TierFault
from flexkv_tiers.memory import HostMemory, PageRun, page_runs, sealed_memfd
from tests.leaks import mapped_memfds, open_files
from tests.tiers.paged import (
    GEOMETRY,
    LAYOUTS,
    PAGE_COUNT,
    Layout,
    Worker,
    descending,
    layer_first,
    page_first,
    scattered,
    window,
)

MESSAGE = layer_first(GEOMETRY, 16)


@pytest.fixture
def descriptor() -> Iterator[int]:
    number = sealed_memfd("test-worker", MESSAGE.bytes)
    yield number
    os.close(number)


def refusal(descriptor: int, message: RegisterMemory = MESSAGE, geometry: Geometry = GEOMETRY) -> ErrorCode:
    """Code of the error; nothing may have been mapped and no descriptor left open by then."""
    files, maps = open_files(), mapped_memfds()
    with pytest.raises(FlexKVError) as caught:
        HostMemory(descriptor, message, geometry)
    assert not open_files() - files
    assert not mapped_memfds() - maps
    assert re.search(r": \w+", caught.value.message), "a refusal names its cure"
    return caught.value.code


def unsealed(flags: int = os.MFD_ALLOW_SEALING) -> int:
    descriptor = os.memfd_create("test-unsealed", flags)
    os.ftruncate(descriptor, 4 * 1024 * 1024)
    return descriptor


def shrink_sealed(extra_seals: int) -> int:
    descriptor = unsealed()
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | extra_seals)
    return descriptor


def regular_file(directory: str) -> int:
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, MESSAGE.bytes)
    return descriptor


def sealed_huge() -> int:
    descriptor = unsealed(os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def read_only() -> int:
    writable = shrink_sealed(0)
    try:
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    finally:
        os.close(writable)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(unsealed, id="unsealed"),
        pytest.param(lambda: unsealed(0), id="sealing not allowed"),
        pytest.param(lambda: regular_file("."), id="regular file"),
        pytest.param(lambda: regular_file("/dev/shm"), id="file on tmpfs"),
        pytest.param(sealed_huge, id="huge pages"),
        pytest.param(read_only, id="read-only descriptor"),
        pytest.param(lambda: shrink_sealed(fcntl.F_SEAL_WRITE), id="sealed against writing"),
        pytest.param(lambda: shrink_sealed(0x10), id="sealed against future writing"),
        pytest.param(lambda: sealed_memfd("test-short", MESSAGE.bytes // 2), id="too short"),
        pytest.param(lambda: os.eventfd(0), id="eventfd"),
        pytest.param(lambda: socket.socket(socket.AF_UNIX).detach(), id="socket"),
    ],
)
def test_memory_that_could_hurt_is_refused_before_mapping(make: Callable[[], int]) -> None:
    """Only a memfd of ordinary pages that cannot shrink, is large enough and writable, is mapped."""
    descriptor = make()
    try:
        assert refusal(descriptor) is ErrorCode.BAD_MEMORY
    finally:
        os.close(descriptor)


def test_registered_memory_cannot_be_truncated(descriptor: int) -> None:
    """The seal that registration demands makes the worker's own ftruncate fail, so no SIGBUS can come of it."""
    memory = HostMemory(descriptor, MESSAGE, GEOMETRY)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    memory.close()


def change(**fields: object) -> Callable[[RegisterMemory], RegisterMemory]:
    return lambda message: msgspec.structs.replace(message, **fields)


def change_layer(at: int, **fields: object) -> Callable[[RegisterMemory], RegisterMemory]:
    def apply(message: RegisterMemory) -> RegisterMemory:
        layout = list(message.layout)
        layout[at] = msgspec.structs.replace(layout[at], **fields)
        return msgspec.structs.replace(message, layout=layout)

    return apply


@pytest.mark.parametrize(
    "lie",
    [
        change(bytes=0),
        change(bytes=-5),
        change(bytes=1 << 63),
        change(bytes=MESSAGE.bytes - 1),
        change(page_count=0),
        change(page_count=1 << 40),
        change(page_count=PAGE_COUNT + 1),
        change(page_tokens=0),
        change(page_tokens=-16),
        change(page_tokens=5),
        change(kind="tensor"),
        change(kind="window"),
        change_layer(3, offset=-1),
        change_layer(3, offset=MESSAGE.bytes),
        change_layer(3, offset=1 << 62),
        change_layer(3, page_stride=0),
        change_layer(3, page_stride=-640),
        change_layer(3, page_stride=1 << 60),
    ],
)
def test_a_lying_registration_is_a_bad_argument(
    descriptor: int, lie: Callable[[RegisterMemory], RegisterMemory]
) -> None:
    """Numbers that contradict each other or reason are refused, whatever the memory is."""
    assert refusal(descriptor, lie(MESSAGE)) is ErrorCode.BAD_ARGUMENT


@pytest.mark.parametrize(
    "lie",
    [
        change(page_tokens=2),  # ends inside a row of the index plane
        change(page_tokens=8),  # pages of half the declared size
        change(layout=[]),
        change(layout=MESSAGE.layout[:-1]),
        change(layout=MESSAGE.layout + MESSAGE.layout[-1:]),
        change_layer(0, layer=1),
        change_layer(0, layer=99),
        change_layer(0, plane=-1),
        change_layer(0, plane=2),
        change_layer(3, page_bytes=0),
        change_layer(3, page_bytes=1),
    ],
)
def test_a_registration_of_another_model_is_a_geometry_mismatch(
    descriptor: int, lie: Callable[[RegisterMemory], RegisterMemory]
) -> None:
    """Other layers or rows than hello declared are refused as that."""
    assert refusal(descriptor, lie(MESSAGE)) is ErrorCode.GEOMETRY_MISMATCH


@pytest.mark.parametrize("lie", [change(page_tokens=8), change(page_count=PAGE_COUNT + 1), change(bytes=4096)])
def test_a_lying_window_is_a_bad_argument(descriptor: int, lie: Callable[[RegisterMemory], RegisterMemory]) -> None:
    """A window's pages are whole blocks and must lie within its bytes."""
    assert refusal(descriptor, lie(window(GEOMETRY))) is ErrorCode.BAD_ARGUMENT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_tokens", [16, 8, 4])
def test_layouts_of_engines_are_accepted(layout: Layout, page_tokens: int) -> None:
    """Layer-first, page-first, descending and scattered tensors all register, at any dividing page size."""
    worker = Worker(layout(GEOMETRY, page_tokens))
    assert worker.memory.pages_per_block == 16 // page_tokens
    worker.close()


def test_a_page_table_is_checked_when_it_comes_in() -> None:
    """A pages field of the wrong length or with a page that is not there gets a coded error."""
    worker = Worker(layer_first(GEOMETRY, 8))
    table = worker.memory.page_table(np.array([0, 5, 7, PAGE_COUNT - 1], "<u4").tobytes(), 2)
    assert table.tolist() == [[0, 5], [7, PAGE_COUNT - 1]]
    for raw, code in [
        (bytes(12), ErrorCode.BAD_ARGUMENT),
        (bytes(15), ErrorCode.BAD_ARGUMENT),
        (np.array([0, 1, 2, PAGE_COUNT], "<u4").tobytes(), ErrorCode.PAGE_OUT_OF_RANGE),
        (b"\xff" * 16, ErrorCode.PAGE_OUT_OF_RANGE),
    ]:
        with pytest.raises(FlexKVError) as caught:
            worker.memory.page_table(raw, 2)
        assert caught.value.code is code
    worker.close()


@pytest.mark.parametrize("layout", [*LAYOUTS, lambda geometry, _: window(geometry)])
def test_gates_may_lie_wherever_no_page_does(layout: Layout) -> None:
    """Every aligned place of the memory, against a walk over all pages: also in gaps between them, and behind all."""
    message = layout(GEOMETRY, 16)
    message = msgspec.structs.replace(message, bytes=message.bytes + 64)
    worker = Worker(message)
    spans = [(entry.offset, entry.page_stride, entry.page_bytes) for entry in message.layout]
    taken = np.zeros(message.bytes + 16, bool)
    for offset, stride, length in spans or [(0, GEOMETRY.block_bytes, GEOMETRY.block_bytes)]:
        for page in range(PAGE_COUNT):
            taken[offset + page * stride : offset + page * stride + length] = True
    taken[message.bytes :] = True
    step = 4 if message.bytes < 1 << 16 else 4 * 61  # of larger memories not every place
    end = message.bytes // 4 * 4
    for offset in (*range(0, end, step), *range(end - 80, end, 4)):
        free = not taken[offset : offset + 4 * GEOMETRY.chunk_count].any()
        assert takes_gates(worker.memory, offset) == free, offset
    worker.close()


def takes_gates(memory: HostMemory, offset: int) -> bool:
    try:
        gates = memory.gates(GateArray(offset, 1), 1)
    except FlexKVError:
        return False
    return [gate.offset for gate in gates] == [offset + 4 * chunk for chunk in range(GEOMETRY.chunk_count)]


def test_a_memory_of_one_page_may_name_any_stride(descriptor: int) -> None:
    """It is never used: what a stranger writes there must not hurt the registration, nor hide the page."""
    layout = [msgspec.structs.replace(entry, page_stride=2**64 - 1) for entry in MESSAGE.layout]
    memory = HostMemory(descriptor, msgspec.structs.replace(MESSAGE, page_count=1, layout=layout), GEOMETRY)
    with pytest.raises(FlexKVError, match="where pages do"):
        memory.gates(GateArray(0, 1), 1)
    memory.close()


def test_memory_closes_once_no_view_is_left(descriptor: int) -> None:
    """While a copy holds a view the mapping stays; afterwards it goes, and a view of it is a fault."""
    memory = HostMemory(descriptor, MESSAGE, GEOMETRY)
    strand, run = memory.strands[0][0], PageRun(0, 3, 1, 0)
    view = memory.view(strand, run)
    with pytest.raises(BufferError):
        memory.close()
    del view
    memory.close()
    memory.close()
    assert memory.closed
    with pytest.raises(TierFault) as caught:
        memory.view(strand, run)
    assert caught.value.fault is Fault.MEMORY


def test_a_view_never_leaves_the_memory() -> None:
    """Pages outside are a fault even if the edge let them pass, forwards, backwards and far away."""
    worker = Worker(descending(GEOMETRY, 16))
    strand = max(worker.memory.strands[3], key=lambda strand: strand.layer_count)
    assert strand.layer_stride < 0
    for run in (PageRun(0, PAGE_COUNT * 9, 1, 0), PageRun(0, 2, 4, -40), PageRun(0, 2**32 - 1, 2, 2**32)):
        with pytest.raises(TierFault):
            worker.memory.view(strand, run)
    worker.close()


def test_regular_layers_merge_into_one_strand_per_chunk_and_plane() -> None:
    """Evenly spaced layers are one copy; what is scattered falls back to pairs at best."""
    planes = (Plane("kv", tuple(range(61)), 656), Plane("index", tuple(range(61)), 132))
    geometry = Geometry(planes, tokens_per_block=64)
    for layout in (layer_first, page_first, descending):
        worker = Worker(layout(geometry, 64), geometry)
        assert [len(strands) for strands in worker.memory.strands] == [2] * geometry.chunk_count
        worker.close()
    worker = Worker(scattered(geometry, 64), geometry)
    assert sum(strand.layer_count for strands in worker.memory.strands for strand in strands) == 122
    worker.close()


@pytest.mark.parametrize(
    ("pages", "runs"),
    [
        ([7], [(0, 7, 1, 0)]),
        ([4, 5, 6, 7], [(0, 4, 4, 1)]),
        ([9, 6, 3], [(0, 9, 3, -3)]),
        ([1, 2, 9, 10, 11], [(0, 1, 2, 1), (2, 9, 3, 1)]),
        ([5, 5], [(0, 5, 2, 0)]),
        ([0, 1, 5], [(0, 0, 2, 1), (2, 5, 1, 0)]),
    ],
)
def test_pages_are_cut_into_even_runs(pages: list[int], runs: list[tuple[int, int, int, int]]) -> None:
    """Consecutive or evenly spaced pages of a block are one run."""
    assert list(page_runs(pages)) == [PageRun(*run) for run in runs]
