"""The daemon's arena as a worker of the row path sees it: segments mapped read-only, frames by number.

Owns the mappings, which outlive the connection and the daemon: what was granted stays readable until the
last user of an `ArenaMap` lets go of it. Who may read which frame is told by `Pages`, not known here.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import Segments


class ArenaMap:
    """Segments of `segment_bytes` bytes each. Frame n starts `n * frame_step_bytes` into all of them together.

    `boot` names the life of the daemon whose arena this is; `complete` when all of it is mapped. `segments` are
    `mmap` objects: `torch.frombuffer` or `numpy.frombuffer` over one takes no copy.
    """

    def __init__(self, boot: bytes, *, writable: bool) -> None:
        self.boot = boot
        self.writable = writable
        self.segment_bytes = 0
        self.frame_step_bytes = 0
        self.segments: list[mmap.mmap] = []
        self.complete = False

    def add(self, reply: Segments, descriptors: Sequence[int]) -> None:
        """Map further segments; closes the descriptors in any case. Raises OUT_OF_FILES, BAD_MEMORY, BAD_MESSAGE."""
        self.segment_bytes, self.frame_step_bytes = reply.segment_bytes, reply.frame_step_bytes
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
        try:
            for descriptor in descriptors:
                self.segments.append(mmap.mmap(descriptor, self.segment_bytes, mmap.MAP_SHARED, access))
        except (OSError, ValueError) as error:
            raise _refusal(error, self.segment_bytes) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if len(descriptors) < reply.count:  # the kernel drops those that find no room in this process
            raise _out_of_files()
        if not reply.count or reply.first + reply.count != len(self.segments):
            raise FlexKVError(
                ErrorCode.BAD_MESSAGE,
                f"the daemon sent {reply.count} segments from {reply.first} on where {len(self.segments)} should be "
                "mapped then: install the same release on both ends",
            )
        self.complete = len(self.segments) == reply.total

    def view(self, frame: int, length: int) -> memoryview:
        """`length` bytes of a frame, without a copy. Valid data while the frame is granted, and not before.

        Raises BAD_ARGUMENT for a frame that is not in this arena.
        """
        number, offset = divmod(frame * self.frame_step_bytes, self.segment_bytes)
        if not 0 <= number < len(self.segments) or not 0 < length <= self.segment_bytes - offset:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"{length} bytes of frame {frame} are not within one of the {len(self.segments)} mapped segments: "
                "take frames from page changes, of the same life of the daemon",
            )
        return memoryview(self.segments[number])[offset : offset + length]


def _refusal(error: Exception, segment_bytes: int) -> FlexKVError:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return _out_of_files()
    return FlexKVError(
        ErrorCode.BAD_MEMORY,
        f"a segment of {segment_bytes} bytes of the daemon's arena cannot be mapped ({error}): "
        "leave this process enough address space",
    )


def _out_of_files() -> FlexKVError:
    return FlexKVError(
        ErrorCode.OUT_OF_FILES,
        "this process may open no more files, and each mapped segment of the arena keeps one: raise its limit "
        "(RLIMIT_NOFILE), or give the daemon fewer and larger segments",
    )
