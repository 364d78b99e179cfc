"""The child's side of a byte worker: reads calls from the socket and runs each on one of N threads.

Owns the socket, the threads and the child's death: it lives exactly as long as its daemon holds the
other end. What a call does is the tier's business, given as a handler. Called by the `__main__` of a
tier's worker module; never imported by the daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO, NoReturn

import msgspec

from flexkv_tiers.byteworkers.framing import HEAD_BYTES, Head, Opening, Verb, pack_frame, parse_head
from flexkv_tiers.memory import Arena

NICENESS = 5
"""Above the daemon's: where cores are short, its loop runs first. It shares no lock with this process (its own
threads must not be nicer than the loop: one of them may hold the GIL and have no core)."""
SPARE_THREADS = 1
"""For a call that must not wait until another has ended. A thread that nothing needs is not started."""
_PR_SET_PDEATHSIG = 1


class Call:
    """One running call, and the way to make it let go of its frames before its natural end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stopped = False
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def stop(self) -> None:
        """From the reading thread: nobody wants the rest."""
        with self._lock:
            self.stopped = True
            if self._interrupt is not None:
                self._interrupt()

    def interruptible_by(self, interrupt: Callable[[], None] | None) -> None:
        """From the call's own thread: what wakes the wait that comes now, or None when it is over."""
        with self._lock:
            self._interrupt = interrupt
            if self.stopped and interrupt is not None:
                interrupt()


Handler = Callable[[bytes, Call], Iterator[bytes]]
"""Runs one request and yields its replies. Faults are replies; what it raises is a bug."""


def serve(open_handler: Callable[[bytes, Arena], Handler]) -> NoReturn:
    """Serve the socket named on the command line until its other end is closed; never returns.

    `open_handler(options, arena)` is called once.
    """
    channel, parent = (int(argument) for argument in sys.argv[1:])
    _die_with(parent)
    with suppress(PermissionError):  # a container may forbid it; nothing depends on it
        os.nice(NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # waking up, it pushes nobody off a core
    _Server(socket.socket(fileno=channel)).run(open_handler)
    # At once, whatever the threads are in: the daemon is gone or has asked for it, and no one reads results.
    os._exit(0)


def _die_with(parent: int) -> None:
    """Tie this process's life to its daemon's and to nothing else."""
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group, but the daemon still
    # needs this process while it drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


class _Server:
    """Reads frames on the main thread, answers from the pool's threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._calls: dict[int, Call] = {}  # calls that have not sent their last frame

    def run(self, open_handler: Callable[[bytes, Arena], Handler]) -> None:
        incoming = self._channel.makefile("rb")
        first = _read_frame(incoming)
        if first is None:
            return
        assert first[0].verb is Verb.OPEN
        opening = msgspec.msgpack.decode(first[1], type=Opening)
        handler = open_handler(opening.options, Arena.attach(opening.segment_fds, opening.segment_bytes))
        pool = ThreadPoolExecutor(opening.threads + SPARE_THREADS, thread_name_prefix="byteworker")
        while (frame := _read_frame(incoming)) is not None:
            head, body = frame
            if head.verb is Verb.CALL:
                call = self._calls[head.call] = Call(head.call)
                pool.submit(self._run_call, handler, body, call)
            else:
                assert head.verb is Verb.STOP
                if (running := self._calls.get(head.call)) is not None:
                    running.stop()

    def _run_call(self, handler: Handler, request: bytes, call: Call) -> None:
        last = pack_frame(Verb.END, call.number)
        try:
            for reply in handler(request, call):
                self._send(pack_frame(Verb.REPLY, call.number, reply))
        except Exception:  # the daemon raises it again, with this traceback
            last = pack_frame(Verb.BUG, call.number, traceback.format_exc().encode())
        del self._calls[call.number]
        self._send(last)

    def _send(self, frame: bytes) -> None:
        try:
            with self._sending:
                self._channel.sendall(frame)
        except OSError:  # the daemon has closed its end; the reading thread is about to see that too
            os._exit(0)


def _read_frame(incoming: BinaryIO) -> tuple[Head, bytes] | None:
    """The next frame, or None at the end of the stream."""
    try:
        raw = incoming.read(HEAD_BYTES)
        if len(raw) < HEAD_BYTES:
            return None
        head = parse_head(raw)
        body = incoming.read(head.body_bytes)
    except ConnectionResetError:  # the daemon died with replies of ours unread
        return None
    return (head, body) if len(body) == head.body_bytes else None
