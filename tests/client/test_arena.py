"""The mapped arena without a daemon: descriptors that come short, in the wrong order, or cannot be mapped."""

import os
from collections.abc import Callable

import pytest

from flexkv_py.client import ArenaMap
from flexkv_py.errors import ErrorCode
from flexkv_py.wire.messages import Segments

from .test_client import refused

SEGMENT_BYTES = 8192


def segment(length: int = SEGMENT_BYTES) -> int:
    descriptor = os.memfd_create("segment")
    os.ftruncate(descriptor, length)
    return descriptor


def reply(first: int, count: int, total: int = 2) -> Segments:
    return Segments(0, first, count, total, SEGMENT_BYTES, 4096, False)


@pytest.fixture
def arena() -> ArenaMap:
    return ArenaMap(b"boot", writable=False)


def test_segments_are_one_space_of_frames(arena: ArenaMap) -> None:
    """A frame's number is its place in all segments together; it lies in one of them."""
    first, second = segment(), segment()
    os.pwrite(second, b"hello", 4096)
    arena.add(reply(0, 1), [first])
    assert not arena.complete
    arena.add(reply(1, 1), [second])
    assert arena.complete
    assert bytes(arena.view(3, 5)) == b"hello"
    for frame, length in ((3, 4097), (4, 1), (-1, 1), (0, 0)):
        with refused(ErrorCode.BAD_ARGUMENT):
            arena.view(frame, length)


def test_descriptors_that_found_no_room_here_are_told(arena: ArenaMap) -> None:
    """The kernel drops what a process may not open any more: that is said with its cure, not mapped short."""
    with refused(ErrorCode.OUT_OF_FILES) as refusal:
        arena.add(reply(0, 2), [segment()])
    assert "RLIMIT_NOFILE" in refusal.value.message


@pytest.mark.parametrize(
    ("message", "make", "code"),
    [
        (reply(1, 1), segment, ErrorCode.BAD_MESSAGE),
        (reply(0, 0), segment, ErrorCode.BAD_MESSAGE),
        (reply(0, 1), lambda: segment(4096), ErrorCode.BAD_MEMORY),
    ],
    ids=["out of order", "none", "too short"],
)
def test_what_cannot_be_believed_is_refused(
    arena: ArenaMap, message: Segments, make: Callable[[], int], code: ErrorCode
) -> None:
    """Whatever comes, its descriptors are closed."""
    descriptor = make()
    with refused(code):
        arena.add(message, [descriptor])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
