"""Fake memory in which bytes really move: the arena by frame, and a watch over what is in use.

Pages of frames that are free, or being filled, hold poison, so whoever reads too early or too late
gets bytes that are nobody's.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable

from flexkv_py.core.frames import FramePool
from flexkv_py.core.messages import BlockName
from tests.sim.violation import Violation

POISON = b"\xde" * 4096
NO_CHECKSUM = bytes(16)


class WatchedFrames(FramePool):
    """The planner's own frame pool; tells of every frame that comes free."""

    def __init__(self, segment_bytes: int, segment_count: int, given: Callable[[int, tuple[int, ...]], None]) -> None:
        super().__init__(segment_bytes, segment_count)
        self._given = given

    def give(self, frame_pages: int, frames: bytes) -> None:
        self._given(frame_pages, tuple(array("I", frames)))
        super().give(frame_pages, frames)


class FakeArena:
    """Contents by frame number, and by page who reads and who fills them just now."""

    def __init__(self) -> None:
        self._content: dict[int, tuple[bytes, bytes]] = {}  # data and checksum by the frame's first page
        self._reading: Counter[int] = Counter()
        self._filling: Counter[int] = Counter()
        self._mapped: Counter[int] = Counter()  # pages of frames that a worker may read at any moment

    def read(self, frame: int) -> tuple[bytes, bytes]:
        """What lies there, right or wrong: data and checksum."""
        return self._content.get(frame, (POISON, NO_CHECKSUM))

    def write(self, frame: int, data: bytes, checksum: bytes) -> None:
        self._content[frame] = (data, checksum)

    def begin_filling(self, block: BlockName, frames: tuple[int, ...], pages: int) -> None:
        """A promotion or save begins: nobody else may use any of these pages."""
        for page in _pages(frames, pages):
            if self._filling[page] or self._reading[page]:
                raise Violation(f"page {page} is given to a new fill while a copy still uses it", block)
            if self._mapped[page]:
                raise Violation(f"page {page} is given to a new fill while a worker may still read it", block)
            self._filling[page] += 1
            self._content.pop(page, None)

    def end_filling(self, frames: tuple[int, ...], pages: int) -> None:
        for page in _pages(frames, pages):
            self._filling[page] -= 1

    def begin_reading(self, frames: Iterable[int], pages: int) -> None:
        for page in _pages(frames, pages):
            self._reading[page] += 1

    def end_reading(self, frames: Iterable[int], pages: int) -> None:
        for page in _pages(frames, pages):
            self._reading[page] -= 1

    def map(self, frame: int, pages: int) -> None:
        """A worker is told that it may read this frame."""
        self._mapped.update(_pages((frame,), pages))

    def unmap(self, frame: int, pages: int) -> None:
        """No step of the worker can read it any more."""
        for page in _pages((frame,), pages):
            self._mapped[page] -= 1
            assert self._mapped[page] >= 0

    def given_back(self, pages: int, frames: tuple[int, ...]) -> None:
        """The planner calls these frames free; they are poisoned."""
        for page in _pages(frames, pages):
            if self._filling[page] or self._reading[page]:
                raise Violation(f"frame page {page} is freed while a copy still uses it")
            if self._mapped[page]:
                raise Violation(f"frame page {page} is freed while a worker may still read it")
            self._content.pop(page, None)


def _pages(frames: Iterable[int], pages: int) -> Iterable[int]:
    for frame in frames:
        yield from range(frame, frame + pages)
