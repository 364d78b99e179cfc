"""The DRAM arena: memfd segments that hold frames, and the checksum kept with each frame.

One linear space of 4 KiB pages, cut into segments; a frame number is the index of its first page.
Which frame holds what is the planner's business: here are bytes, addresses and descriptors only. The
daemon makes one arena per trust group; byte workers attach to the same memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.codec import CHECKSUM_BYTES
from flexkv_tiers.memory.memfd import page_bytes, sealed_memfd
from flexkv_tiers.open_files import is_out_of_files, out_of_files

POPULATE_SLICE_BYTES = 16 * 1024 * 1024
"""Populated at a time: about 10 ms, the longest that `stop` waits."""

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
_SHMEM_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")

# mmap.madvise would hold the GIL while the kernel zeroes pages; a foreign call releases it.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Segment:
    """One mapped memfd: `segment_bytes` of frames, then 16 bytes of checksum for every 4 KiB page.

    The checksums lie in the same memfd so that a byte worker shares them; pages of that table that
    no frame uses are never allocated.
    """

    __slots__ = ("address", "checksums", "data", "descriptor", "page_bytes", "whole")

    def __init__(self, descriptor: int, segment_bytes: int) -> None:
        self.descriptor = descriptor
        self.page_bytes = page_bytes(descriptor)
        self.whole = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.whole))
        self.data = memoryview(self.whole)[:segment_bytes]
        self.checksums = memoryview(self.whole)[segment_bytes : _file_bytes(segment_bytes)]

    def close(self) -> None:
        self.data.release()
        self.checksums.release()
        with suppress(BufferError):  # a frame is still in use: it stays mapped until its view is gone
            self.whole.close()
        os.close(self.descriptor)


class Arena:
    """Frames in shared memory. All methods may be called from any thread; `close` comes last."""

    def __init__(self, segment_bytes: int, segment_count: int, *, huge_pages: bool = True) -> None:
        """Make and map `segment_count` memfds. No page is allocated before it is populated or touched.

        `segment_bytes` is a multiple of 4 KiB. Raises FlexKVError: BAD_CONFIG when the system
        grants no such memory, OUT_OF_FILES when it has more segments than files may be open.
        """
        assert segment_bytes > 0
        assert segment_bytes % ALIGN_BYTES == 0
        assert segment_count > 0
        self.segment_bytes = segment_bytes
        self.populated_bytes = 0
        self._segments: list[_Segment] = []
        try:
            for _ in range(segment_count):
                self._segments.append(_make_segment(segment_bytes, huge_pages=huge_pages))
        except OSError as error:
            self.close()
            if is_out_of_files(error):
                raise out_of_files(f"no arena of {segment_count} segments can be had", error) from error
            raise FlexKVError(
                ErrorCode.BAD_CONFIG,
                f"no memory for an arena of {segment_count} segments of {segment_bytes} bytes ({error.strerror}): "
                "make it smaller, or raise the limits on memory or address space",
            ) from error
        self._transparent = huge_pages and _advise_huge(self._segments)

    @classmethod
    def attach(cls, descriptors: Sequence[int], segment_bytes: int) -> Arena:
        """Map the segments of an arena made by another process, writable.

        The descriptors stay the caller's. Raises OSError.
        """
        arena = cls.__new__(cls)
        arena.segment_bytes = segment_bytes
        arena.populated_bytes = 0
        arena._transparent = False
        arena._segments = [_Segment(os.dup(descriptor), segment_bytes) for descriptor in descriptors]
        return arena

    @property
    def segment_fds(self) -> list[int]:
        """The arena's own memfds; not inheritable unless passed on by name (`pass_fds`)."""
        return [segment.descriptor for segment in self._segments]

    @property
    def room_bytes(self) -> int:
        """Room for frames."""
        return self.segment_bytes * len(self._segments)

    def view(self, frame: int, length: int) -> memoryview:
        """Writable bytes of a frame, format 'B', no copy. A frame lies within one segment."""
        number, offset = divmod(frame * ALIGN_BYTES, self.segment_bytes)
        assert 0 <= number < len(self._segments)
        assert 0 < length <= self.segment_bytes - offset
        return self._segments[number].data[offset : offset + length]

    def address(self, frame: int) -> int:
        """Address of a frame in this process, for direct I/O and foreign calls."""
        number, offset = divmod(frame * ALIGN_BYTES, self.segment_bytes)
        assert 0 <= number < len(self._segments)
        return self._segments[number].address + offset

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def segment_address(self, segment: int) -> int:
        """Address of a segment's first frame in this process."""
        return self._segments[segment].address

    def checksum(self, frame: int) -> bytes:
        """The 16 bytes last set for this frame; zeros if never."""
        table, at = self._checksum_place(frame)
        return bytes(table[at : at + CHECKSUM_BYTES])

    def set_checksum(self, frame: int, digest: bytes) -> None:
        assert len(digest) == CHECKSUM_BYTES
        table, at = self._checksum_place(frame)
        table[at : at + CHECKSUM_BYTES] = digest

    def read_only_fd(self, segment: int) -> int:
        """A new descriptor of a segment that cannot be mapped or made writable; the caller owns it.

        It is opened anew rather than duplicated: a duplicate would share the writable file description.
        A process of another uid cannot reopen it writable either, because the memfd has mode 0600.
        """
        return os.open(f"/proc/self/fd/{self._segments[segment].descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def populate(self, stop: threading.Event, populated: Callable[[], None] = lambda: None) -> None:
        """Allocate every page and map it, slice by slice, until done or `stop` is set. Keeps contents.

        Runs in a background thread; `populated_bytes` follows it, and `populated` is called after each segment. It must
        have returned before `close`. Raises FlexKVError(BAD_CONFIG) when memory runs out.
        """
        self.populated_bytes = 0
        for segment in self._segments:
            for offset in range(0, self.segment_bytes, POPULATE_SLICE_BYTES):
                if stop.is_set():
                    return
                length = min(POPULATE_SLICE_BYTES, self.segment_bytes - offset)
                _populate_slice(segment, offset, length)
                self.populated_bytes += length
            populated()

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {
            "bytes": self.room_bytes,
            "segments": len(self._segments),
            "segment_bytes": self.segment_bytes,
            "populated_bytes": self.populated_bytes,
            "huge_page_segments": sum(segment.page_bytes > mmap.PAGESIZE for segment in self._segments),
            "pages": self._page_kind(),
        }

    def close(self) -> None:
        """Unmap and close. A frame whose view is still alive stays mapped until the view is gone."""
        for segment in self._segments:
            segment.close()
        self._segments = []

    def _checksum_place(self, frame: int) -> tuple[memoryview, int]:
        number, offset = divmod(frame * ALIGN_BYTES, self.segment_bytes)
        assert 0 <= number < len(self._segments)
        return self._segments[number].checksums, offset // ALIGN_BYTES * CHECKSUM_BYTES

    def _page_kind(self) -> str:
        sizes = sorted({segment.page_bytes for segment in self._segments})
        kinds = [f"{size // 1024} KiB" for size in sizes]
        return " and ".join(kinds) + (", transparent huge pages where the kernel grants them" * self._transparent)


def _file_bytes(segment_bytes: int) -> int:
    return segment_bytes + segment_bytes // ALIGN_BYTES * CHECKSUM_BYTES


def _make_segment(segment_bytes: int, *, huge_pages: bool) -> _Segment:
    """Huge pages if asked for and reserved (mapping them takes the reservation), else ordinary ones."""
    for huge in (True, False) if huge_pages else (False,):
        descriptor = -1
        try:
            descriptor = sealed_memfd("flexkv-arena", _file_bytes(segment_bytes), huge_pages=huge)
            return _Segment(descriptor, segment_bytes)
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            if not huge:
                raise
    raise AssertionError("the last attempt returns or raises")


def _advise_huge(segments: list[_Segment]) -> bool:
    """Ask for transparent huge pages. Whether shared memory gets any is the system's setting."""
    try:
        setting = _SHMEM_HUGE.read_text()
    except OSError:
        return False
    if "[never]" in setting or "[deny]" in setting:
        return False
    for segment in segments:
        if segment.page_bytes == mmap.PAGESIZE:
            segment.whole.madvise(mmap.MADV_HUGEPAGE)
    return True


def _populate_slice(segment: _Segment, offset: int, length: int) -> None:
    """Map and allocate at once; where the kernel cannot, at least allocate.

    The mapping goes first, because only it sees the advice on huge pages. Its failure is no error: the
    allocation that follows finds nothing left to do, or says itself that memory ran out.
    """
    _madvise(segment.address + offset, length, _MADV_POPULATE_WRITE)
    try:
        os.posix_fallocate(segment.descriptor, offset, length)
    except OSError as error:
        raise FlexKVError(
            ErrorCode.BAD_CONFIG,
            f"memory ran out while populating the arena ({error.strerror}): make the arena smaller",
        ) from error
