"""One client's socket: frames in, replies out, descriptors, limits.

Owns the socket and its buffers; knows no message. Asyncio's transports cannot receive descriptors, so
this reads the non-blocking socket itself when the loop says it is readable. Everything runs in the
reader's callback, without a task: a reply is usually sent before the loop turns again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.framing import FrameDecoder
from flexkv_py.wire.messages import DEVICE_DESCRIPTORS_MAX
from flexkv_tiers.open_files import out_of_files

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
"""Read at most this much of one client before the others get their turn."""
LINGER_S_MAX = 1.0
"""A client that is being closed has this long to take its last replies."""
DESCRIPTORS_MAX = DEVICE_DESCRIPTORS_MAX
"""Descriptors of one client that wait for the message they belong to."""
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array("i").itemsize)
_RECEIVE_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, connected: socket.socket) -> Peer:
        packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return cls(*struct.unpack("3i", packed))


class Receiver(Protocol):
    """What a connection needs of its owner."""

    def received(self, connection: Connection, body: memoryview) -> None:
        """Handle one message. A FlexKVError raised ends the connection."""

    def refused(self, connection: Connection, error: FlexKVError) -> None:
        """Say why the connection ends; it closes when that has been sent."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone; called once."""


class Connection:
    """A connected socket on the loop.

    `descriptors` are those received and not yet taken; what nobody takes is closed. None stands for one that was
    sent, and that the kernel dropped because the daemon had no open file left for it.
    `write_bytes_max` bounds what is kept for a client that does not read.
    """

    def __init__(
        self, connected: socket.socket, receiver: Receiver, loop: asyncio.AbstractEventLoop, write_bytes_max: int
    ) -> None:
        self.peer = Peer.of(connected)
        self.closed = False
        self._socket = connected
        self._receiver = receiver
        self._loop = loop
        self._frames = FrameDecoder()
        self._descriptors: deque[int | None] = deque()
        self._out = bytearray()
        self._handed: deque[tuple[int, list[int]]] = deque()  # descriptors, by where in the stream their frame starts
        self._sent_bytes = 0
        self._write_bytes_max = write_bytes_max
        self._corked = False
        self._writing = False
        self._closing = False
        connected.setblocking(False)
        loop.add_reader(connected, self._readable)

    def hung_up(self) -> bool:
        """Whether the client is gone, though what it sent last may still wait to be read."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def take_descriptor(self) -> int | None:
        """The oldest descriptor received; the caller owns it from now on. None: the client sent none.

        Raises FlexKVError(OUT_OF_FILES) when one was sent, and lost here.
        """
        if not self._descriptors:
            return None
        descriptor = self._descriptors.popleft()
        if descriptor is None:
            raise out_of_files("the daemon could not receive the descriptor of this memory")
        return descriptor

    def open_peer_process(self) -> int:
        """A pidfd of the process that connected; the caller owns it. Raises OSError where it cannot be had.

        The kernel's own answer cannot mean a later process with the same number, and reaches into other namespaces.
        """
        try:
            return self._socket.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            return os.pidfd_open(self.peer.pid)

    def send(self, frame: bytes | bytearray, descriptors: Sequence[int] = ()) -> None:
        """Send one frame now, or at the end of this turn when more may follow. Owns the descriptors beside it."""
        if self.closed:
            _close_all(descriptors)
            return
        if descriptors:
            self._handed.append((self._sent_bytes + len(self._out), list(descriptors)))
        self._out += frame
        if not self._corked and not self._writing:
            self._write()
        if len(self._out) > self._write_bytes_max:
            log.warning("closed a client (pid %d) that does not read its replies", self.peer.pid)
            self.close()

    def close_after_replies(self) -> None:
        """Read no more, send what is there, then close."""
        if self.closed or self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._socket)
        self._loop.call_later(LINGER_S_MAX, self.close)
        if not self._corked and not self._writing:
            self._write()

    def close(self) -> None:
        """Close at once, whatever is unsent."""
        if self.closed:
            return
        self.closed = True
        if not self._closing:
            self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._drop_descriptors()
        while self._handed:
            _close_all(self._handed.popleft()[1])
        self._socket.close()
        self._out.clear()
        self._receiver.lost(self)

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(READ_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._corked = True
        try:
            if ancillary or flags & socket.MSG_CTRUNC:
                self._keep_descriptors(ancillary, truncated=bool(flags & socket.MSG_CTRUNC))
            if data:
                self._handle(data)
        except FlexKVError as error:  # what follows in the stream cannot be trusted
            log.info("closed a client (pid %d): %s", self.peer.pid, error)
            self._receiver.refused(self, error)
            self.close_after_replies()
        except Exception:
            log.exception("a bug while serving a client (pid %d): its connection is closed", self.peer.pid)
            self.close()
        finally:
            self._corked = False
        if not data:
            self.close()
        elif not self.closed and not self._writing:
            self._write()

    def _handle(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._receiver.received(self, body)
            if self.closed or self._closing:
                return
        if self._descriptors and not self._frames.pending_bytes:
            self._drop_descriptors()  # they came with a message that takes none

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]], *, truncated: bool) -> None:
        received: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % array("i").itemsize
                received += array("i", content[:whole])
        self._descriptors.extend(received)
        if truncated and len(received) < DESCRIPTORS_MAX:  # there was room for it in the message, not in the process
            self._descriptors.append(None)
            truncated = False
        if truncated or len(self._descriptors) > DESCRIPTORS_MAX:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"more than {DESCRIPTORS_MAX} descriptors wait for their message: send one, with register_memory",
            )

    def _drop_descriptors(self) -> None:
        while self._descriptors:
            descriptor = self._descriptors.popleft()
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _write(self) -> None:
        out = self._out
        if out:
            try:
                sent = self._send_handed() if self._handed else self._socket.send(out)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self.close()
                return
            self._sent_bytes += sent
            del out[:sent]
        if out and not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket, self._write)
        elif not out and self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)
        if not out and self._closing:
            self.close()

    def _send_handed(self) -> int:
        """Send up to the next frame that descriptors go with; or from that one on, up to the one after it."""
        starts = [at - self._sent_bytes for at, _ in self._handed][:2]
        if starts[0]:
            with memoryview(self._out)[: starts[0]] as before:
                return self._socket.send(before)
        with memoryview(self._out)[: starts[1] if len(starts) > 1 else None] as frames:
            sent = socket.send_fds(self._socket, [frames], self._handed[0][1])
        _close_all(self._handed.popleft()[1])
        return sent


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
