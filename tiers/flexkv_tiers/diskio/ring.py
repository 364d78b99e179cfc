"""The kernel's io_uring by its own interface: setup, submission, completion. No queues, no futures.

Layouts and numbers are those of linux/io_uring.h. The ring is made with DEFER_TASKRUN (Linux 6.1):
the kernel then posts completions only inside `io_uring_enter` of the one thread that submits, and
signals the eventfd when there is something to post. That is why plain loads and stores are right here,
on any processor: both ends of both rings are touched by one thread only, in program order, on one side
or the other of a system call, and no barrier is needed where no second thread takes part. Without
DEFER_TASKRUN another thread's completions would need a load-acquire that Python does not have, so
older kernels are refused instead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Literal

from flexkv_py.geometry import align_up

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # the same on every architecture that has io_uring
_SINGLE_MMAP = 1 << 0
_SUBMIT_ALL, _SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 7, 1 << 12, 1 << 13
_GETEVENTS = 1
_REGISTER_EVENTFD = 4
_SQES_OFFSET = 0x10000000
_PARAMETERS = struct.Struct("=10I 8IQ 8IQ")  # io_uring_params with its two tables of offsets
_ENTRY = struct.Struct("=BBHiQQIIQ24x")  # io_uring_sqe
_COMPLETION_BYTES = 16  # io_uring_cqe: user_data, result, flags
_IOVEC_WORDS = 2  # address, length
_AGAIN = (errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ENOMEM)

NOP, READV, WRITEV, FSYNC = 0, 1, 2, 3
DATASYNC = 1
"""Flag of FSYNC: fdatasync."""
ASYNC = 1 << 4
"""Flag of an entry: a thread of the kernel carries it out from the start, `enter` only hands it over."""

_system = ctypes.CDLL(None, use_errno=True)
_system.syscall.restype = ctypes.c_long
_REFUSALS = {
    errno.ENOSYS: "this kernel has no io_uring",
    errno.EPERM: "io_uring is forbidden here, by kernel.io_uring_disabled or a seccomp filter",
    errno.EINVAL: "this kernel's io_uring is older than Linux 6.1",
}


def _call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call; raises OSError."""
    result: int = _system.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, _REFUSALS.get(error, os.strerror(error)))
    return result


class Ring:
    """A ring of `entries` places, each with room for `iovecs_max` pieces of memory. One thread uses it."""

    def __init__(self, entries: int, iovecs_max: int) -> None:
        """Raises OSError, its text a reason for people, where the kernel does not let us."""
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when `enter` has something to take in."""
        self._ring = -1
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        self.prepared = 0
        """Entries written and not submitted yet."""
        try:
            self._set_up(entries, iovecs_max)
            self._try_out()
        except BaseException:
            self.close()
            raise

    def _set_up(self, entries: int, iovecs_max: int) -> None:
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        _PARAMETERS.pack_into(parameters, 0, 0, 0, _SUBMIT_ALL | _SINGLE_ISSUER | _DEFER_TASKRUN, *[0] * 25)
        self._ring = _call(_SETUP, entries, parameters)
        given = _PARAMETERS.unpack(parameters.raw)
        entries, completions, features = given[0], given[1], given[5]
        assert features & _SINGLE_MMAP  # since Linux 5.4
        submission, completion = given[10:19], given[19:28]
        self._mask, self._completion_mask = entries - 1, completions - 1
        queue_bytes = max(submission[6] + 4 * entries, completion[5] + _COMPLETION_BYTES * completions)
        shared = self._map(self._ring, align_up(queue_bytes), 0)
        self._entries = self._map(self._ring, _ENTRY.size * entries, _SQES_OFFSET)
        iovecs = self._map(-1, 8 * _IOVEC_WORDS * iovecs_max * entries, 0)
        self._words = self._view(shared, "I")
        self._results = self._view(shared, "i")
        self._tokens = self._view(shared, "Q")
        self._iovecs = self._view(iovecs, "Q")
        self._iovecs_max = iovecs_max
        self._iovecs_address = ctypes.addressof(ctypes.c_char.from_buffer(iovecs))
        self._tail_at = submission[1] // 4
        self._head_at, self._completion_tail_at = completion[0] // 4, completion[1] // 4
        self._completions_at = completion[5]
        self._tail, self._head = self._words[self._tail_at], self._words[self._head_at]
        for index in range(entries):  # the array of indices stays the identity
            self._words[submission[6] // 4 + index] = index
        _call(
            _REGISTER, self._ring, _REGISTER_EVENTFD, ctypes.create_string_buffer(struct.pack("=i", self.event), 4), 1
        )

    def _map(self, descriptor: int, length: int, offset: int) -> mmap.mmap:
        area = mmap.mmap(descriptor, length, offset=offset)
        self._maps.append(area)
        return area

    def _view(self, area: mmap.mmap, code: Literal["I", "i", "Q"]) -> memoryview:
        """Words of a shared area; reading or writing one is a single load or store."""
        view: memoryview[int] = memoryview(area).cast(code)
        self._views.append(view)
        return view

    def _try_out(self) -> None:
        """All three system calls have to work: a filter may forbid any of them."""
        self.prepare(NOP, -1, 0)
        self.enter()
        assert self.reap() == [(0, 0)]
        os.eventfd_read(self.event)

    def prepare(
        self,
        code: int,
        descriptor: int,
        token: int,
        *,
        offset: int = 0,
        address: int = 0,
        length: int = 0,
        entry_flags: int = 0,
        flags: int = 0,
    ) -> None:
        """Write one entry; `enter` submits it. `token` comes back with its result."""
        assert self.prepared <= self._mask
        at = ((self._tail + self.prepared) & self._mask) * _ENTRY.size
        _ENTRY.pack_into(self._entries, at, code, entry_flags, 0, descriptor, offset, address, length, flags, token)
        self.prepared += 1

    def prepare_vector(
        self,
        code: int,
        descriptor: int,
        token: int,
        pieces: Sequence[tuple[int, int]],
        *,
        offset: int,
        entry_flags: int,
        flags: int,
    ) -> None:
        """A READV or WRITEV of (address, length) pieces. `token` is below `entries`, and one entry at a time has it.

        The kernel copies the addresses when the entry is submitted; the memory has to live until its result is in.
        """
        assert len(pieces) <= self._iovecs_max
        at = token * self._iovecs_max * _IOVEC_WORDS
        iovecs = self._iovecs
        for index, (address, length) in enumerate(pieces):
            iovecs[at + 2 * index] = address
            iovecs[at + 2 * index + 1] = length
        self.prepare(
            code,
            descriptor,
            token,
            offset=offset,
            address=self._iovecs_address + 8 * at,
            length=len(pieces),
            entry_flags=entry_flags,
            flags=flags,
        )

    def enter(self) -> bool:
        """Submit what was prepared and have the kernel post what has ended; False: try again a little later."""
        self._words[self._tail_at] = (self._tail + self.prepared) & 0xFFFFFFFF
        try:
            submitted = _call(_ENTER, self._ring, self.prepared, 0, _GETEVENTS, None, 0)
        except OSError as error:
            if error.errno in _AGAIN:  # nothing was submitted
                return False
            raise
        self._tail += submitted
        self.prepared -= submitted
        return not self.prepared

    def reap(self) -> list[tuple[int, int]]:
        """(token, result) of everything posted since the last call. A result is a count of bytes or minus an errno."""
        ended = []
        tail = self._words[self._completion_tail_at]
        while self._head != tail:
            at = self._completions_at + (self._head & self._completion_mask) * _COMPLETION_BYTES
            ended.append((self._tokens[at // 8], self._results[at // 4 + 2]))
            self._head = (self._head + 1) & 0xFFFFFFFF
        self._words[self._head_at] = self._head
        return ended

    def close(self) -> None:
        """Let go of everything. Nothing may be under way."""
        for view in self._views:
            view.release()
        for area in self._maps:
            area.close()
        if self._ring >= 0:
            os.close(self._ring)
        os.close(self.event)
