"""What of CUDA memory can be shown without a device: arithmetic, limits, refusals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.gates import GENERATIONS, gate_value, has_failed, is_open, next_generation
from flexkv_tiers.cuda import CudaFailure, Device, Rectangle
from flexkv_tiers.cuda import driver as real
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.cuda import (
    MappedArena,
    PinnedArena,
    check_row_path,
)
from flexkv_tiers.memory.descriptors import PITCH_BYTES_MAX, describe, piece_table, rectangles
from flexkv_tiers.memory.layout import chunk_strands
from tests.tiers.host_driver import UUID, HostDriver
from tests.tiers.lane_rigs import FRAME_COUNT
from tests.tiers.paged import GEOMETRY, layer_first, page_first

MESSAGE = layer_first(GEOMETRY, 8)
DEVICE = Device(UUID, 0, 1, read_only_supported=False)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(FRAME_COUNT * GEOMETRY.frame_bytes, 1)
    yield arena
    arena.close()


# ------------------------------------------------------------ descriptors


def test_pages_in_a_row_become_one_copy_and_two_blocks_never_do() -> None:
    """Pages that follow each other on both sides merge; frames that touch do not, for a pinned part may end there."""
    table = piece_table(chunk_strands(GEOMETRY, MESSAGE)[0], lambda offset: 1 << 20 | offset)
    payload = sum(int(each) * 2 for each in table.page_bytes)
    copies = describe(table, [0, payload], np.array([[4, 5], [6, 7]], np.uint32))
    assert len(copies.lengths) == 2 * len(table.outside)
    assert int(copies.lengths.sum()) == 2 * payload
    apart = describe(table, [0], np.array([[4, 6]], np.uint32))
    assert len(apart.lengths) == 2 * len(table.outside)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.sampled_from([8, 8, 8, 16])), max_size=40))
def test_rectangles_are_the_same_copies(steps: list[tuple[int, int, int]]) -> None:
    """Whatever the arrays, the rows of the rectangles are their entries, in order, with pitches a device takes."""
    rows = [(1000 + 50 * at + a, 9000 + 40 * at + b, length) for at, (a, b, length) in enumerate(steps)]
    arrays = [np.array([row[column] for row in rows], np.uint64) for column in range(3)]
    again = []
    for each in rectangles(*arrays):
        assert each.height == 1 or each.width <= min(each.target_pitch, each.source_pitch)
        assert max(each.target_pitch, each.source_pitch) <= PITCH_BYTES_MAX
        again += [
            (each.target + row * each.target_pitch, each.source + row * each.source_pitch, each.width)
            for row in range(each.height)
        ]
    assert again == rows


def test_layers_of_a_page_first_memory_are_few_rectangles() -> None:
    """Evenly spaced copies take one 2-D copy, not one call each."""
    table = piece_table(chunk_strands(GEOMETRY, page_first(GEOMETRY, 4))[0], lambda offset: 1 << 20 | offset)
    copies = describe(table, [0], np.array([[0, 2, 4, 6]], np.uint32))
    assert len(copies.lengths) == 4 * len(table.outside)
    assert len(list(rectangles(copies.outside, copies.inside, copies.lengths))) == len(table.outside)


# ------------------------------------------------------------------ gates


@given(st.integers(0, GENERATIONS - 1), st.integers(0, 1000), st.booleans())
def test_gates_stay_open_for_the_past_and_shut_for_the_future(generation: int, ahead: int, failed: bool) -> None:
    """With wrap-around: a value opens its own generation and those before, never a later one, failed or not."""
    later = generation
    for _ in range(ahead):
        later = next_generation(later)
    assert is_open(gate_value(later, failed=failed), generation)
    assert is_open(gate_value(generation, failed=failed), later) is (ahead == 0)
    assert has_failed(gate_value(generation, failed=failed)) is failed


# --------------------------------------------------------- the arena, pinned


def test_an_arena_is_pinned_and_let_go_segment_by_segment() -> None:
    """In order behind what is populated, the last first on the way back, none of them while it is used."""
    arena, driver = Arena(1 << 20, 3, huge_pages=False), HostDriver()
    pinned = PinnedArena(driver, arena)
    assert pinned.next_to_pin((1 << 20) - 1) is None
    for segment in range(3):
        assert pinned.next_to_pin((segment + 1) << 20) == segment
        pinned.pin(segment)
    assert pinned.pinned_bytes == sum(driver.pinned.values()) == arena.room_bytes
    assert pinned.next_to_pin(arena.room_bytes) is None
    assert pinned.next_to_let_go({0, 1, 2}) is None
    assert pinned.next_to_let_go({2}) == 1
    pinned.unpin(1)
    assert list(driver.pinned) == [arena.segment_address(0), arena.segment_address(2)]
    assert (pinned.next_to_let_go(()), pinned.next_to_pin(arena.room_bytes)) == (2, 1)
    arena.close()


def test_a_refusal_to_pin_or_to_let_go_is_told_with_its_cure() -> None:
    """What could not be pinned is still to be pinned; what could not be let go is the kernel's, and asked for once."""
    arena, driver = Arena(1 << 20, 2, huge_pages=False), HostDriver()
    pinned = PinnedArena(driver, arena)
    driver.refuse = {"device": 46}
    with pytest.raises(FlexKVError, match="CUDA_VISIBLE_DEVICES"):
        pinned.pin(0)
    driver.refuse.clear()
    pinned.pin(0)
    driver.refuse = {"pin": 2, "unpin": 713}
    with pytest.raises(FlexKVError, match="LimitMEMLOCK"):
        pinned.pin(1)
    assert pinned.next_to_pin(arena.room_bytes) == 1
    with pytest.raises(CudaFailure):
        pinned.unpin(0)
    assert pinned.next_to_let_go(()) is None
    arena.close()


def test_the_row_path_needs_a_device_that_pins_what_it_may_not_write() -> None:
    """Members of a trust group that are strangers are refused there, with both cures; `shared` ones are not."""
    with pytest.raises(FlexKVError, match=r"shared.*page path") as caught:
        check_row_path(DEVICE, shared=False)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    check_row_path(DEVICE, shared=True)
    check_row_path(Device(UUID, 0, 1, read_only_supported=True), shared=False)


def test_a_worker_pins_its_mapping_of_the_arena_or_nothing_of_it() -> None:
    """Refused before anything is pinned where the device cannot; read-only unless shared; a failure leaves nothing."""
    driver, segments = HostDriver(), [memoryview(bytearray(4096)) for _ in range(3)]
    with pytest.raises(FlexKVError, match=r"shared.*page path"):
        MappedArena(driver, DEVICE, segments, shared=False)
    assert not driver.calls
    mapped = MappedArena(driver, Device(UUID, 0, 1, read_only_supported=True), segments, shared=False)
    assert (list(driver.pinned), driver.read_only) == (mapped.addresses, [True] * 3)
    mapped.close()
    assert not driver.pinned
    mapped = MappedArena(driver, DEVICE, segments, shared=True)
    assert driver.read_only[3:] == [False] * 3
    mapped.close()
    for call in ("pin", "device_address"):
        driver.refuse = {call: 2}
        with pytest.raises(FlexKVError, match="page path"):
            MappedArena(driver, DEVICE, segments, shared=True)
        assert not driver.pinned


# ------------------------------------------------------------ the real driver


def test_without_a_driver_cuda_is_missing_with_cause_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine without libcuda says, here or on one where it is hidden; to a worker's `RowArena`, too."""
    monkeypatch.setattr(real, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(FlexKVError, match=r"no NVIDIA driver.*flexkv-py\[cuda\]") as caught:
        real.CudaDriver()
    assert caught.value.code is ErrorCode.CUDA_MISSING
    assert "daemon" not in caught.value.message


def test_the_raw_call_has_the_layout_of_the_bindings() -> None:
    """The one structure and constant we spell ourselves are those of NVIDIA's header, byte for byte."""
    cuda = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    theirs = cuda.CUmemcpyAttributes()
    theirs.srcAccessOrder = cuda.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    ours = real.MemoryCopyAttributes(source_access_order=real.SOURCE_IN_STREAM_ORDER)
    length = ctypes.sizeof(ours)
    assert ctypes.string_at(theirs.getPtr(), length) == bytes(ours)
    assert int(cuda.CU_MEMHOSTREGISTER_PORTABLE) == real._PINNED_PORTABLE
    assert int(cuda.CU_MEMHOSTREGISTER_DEVICEMAP) == real._PINNED_MAPPED
    assert int(cuda.CU_MEMHOSTREGISTER_READ_ONLY) == real._PINNED_READ_ONLY
    assert int(cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED) == 801


def test_every_driver_call_we_make_is_in_the_bindings() -> None:
    """No name is misspelt: each call by name, and each attribute of the bindings we use, is there."""
    import inspect
    import re

    cuda = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    source = inspect.getsource(real)
    names = set(re.findall(r'_call\("(\w+)"', source)) | set(re.findall(r"\b(?:cuda|_cuda)\.(cu\w+|CU\w+)", source))
    assert len(names) > 25
    assert not [name for name in names if not hasattr(cuda, name)]
    enums = re.findall(r"\b(?:cuda|_cuda)\.(CU\w+)\.(CU_\w+)", source)
    assert enums
    assert not [pair for pair in enums if not hasattr(getattr(cuda, pair[0]), pair[1])]


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "enter": (DEVICE,),
    "create_stream": (),
    "destroy_stream": (1,),
    "synchronize": (1,),
    "create_event": (),
    "destroy_event": (2,),
    "record": (2, 1),
    "await_event": (2,),
    "wait_event": (1, 2),
    "write_value": (1, 4096, 2),
    "pin": (4096, 4096),
    "unpin": (4096,),
    "device_address": (4096,),
    "open_memory": (bytes(range(64)),),
    "close_memory": (4096,),
    "import_memory": (3, 1 << 21, DEVICE),
    "release_memory": (4096, 1 << 21),
    "allocation_bytes": (4096,),
    "export_memory": (4096,),
    "open_event": (bytes(64),),
    "copy_rectangle": (1, Rectangle(1, 2, 3, 4, 5, 6)),
    "_open_device": (UUID,),
    "_batch_entry": (),
}


@pytest.mark.parametrize("method", ARGUMENTS)
def test_every_call_reaches_the_library(method: str) -> None:
    """The bindings take our arguments, types and fields: each call gets as far as the missing libcuda, no further."""
    cuda = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    try:
        ctypes.CDLL(real.LIBRARY)
        pytest.skip("libcuda is here: the tests marked gpu call it for real")
    except OSError:
        pass
    driver = real.CudaDriver.__new__(real.CudaDriver)
    driver._cuda, driver._ordinals, driver._devices = cuda, {UUID: 0}, {}
    with pytest.raises(Exception, match="cuda") as caught:
        getattr(driver, method)(*ARGUMENTS[method])
    assert type(caught.value).__name__ == "DynamicLibNotFoundError"


@pytest.mark.parametrize("version", [12_080, 13_000])
def test_the_raw_call_passes_arrays_where_they_lie(version: int) -> None:
    """Both forms of the entry point get pointers, counts and stream in the driver's order, and its code back."""
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    seen: list[tuple[object, ...]] = []
    index = (pointer,) if version == 12_080 else ()

    def entry(*arguments: int) -> int:
        targets, sources, lengths, count, attributes, first, kinds, *rest = arguments
        arrays = [list((ctypes.c_uint64 * count).from_address(each)) for each in (targets, sources, lengths)]
        order = ctypes.c_int.from_address(attributes).value
        seen.append((*arrays, order, size.from_address(first).value, kinds, len(rest), rest[-1]))
        return 0 if len(seen) == 1 else 801

    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(pointer,) * 3, size, pointer, pointer, size, *index, pointer)
    native = prototype(entry)
    call = real.BatchEntry(ctypes.cast(native, pointer).value or 0, version)
    arrays = [np.array(values, np.uint64) for values in ([1, 2], [1 << 47, 4], [5, 6])]
    call(77, *arrays)
    assert seen == [([1, 2], [1 << 47, 4], [5, 6], 1, 0, 1, 1 + len(index), 77)]
    with pytest.raises(CudaFailure) as caught:
        call(77, *arrays)
    assert caught.value.code == 801
