"""What the service manager hears of the daemon: ready, reloading, stopping, alive, and a line on how it is.

Owns the datagrams of sd_notify(3) and when they go. The watchdog is fed by a timer of the loop itself: a loop that is
stuck feeds nobody, and the manager starts the daemon again. Without NOTIFY_SOCKET nothing is sent. Called by `daemon`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

BEAT_S = 2.0
"""How often the line is looked at; more often where the watchdog asks for it."""
BEATS_PER_WATCHDOG = 3
PROGRESS_S_MAX = 60.0
"""A start is given so long for its next sign of progress, as often as it shows one."""
CLOSE_S_MAX = 25.0
"""What closing files and connections may take, once the drain is over."""
STATE_CHARS_MAX = 1024
UNSENT_MAX = 8
_SECOND_USEC = 1_000_000


@dataclass(frozen=True)
class Supervision:
    """How the service manager wants to hear of us: where, and within which time again and again (0: it does not)."""

    address: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Supervision:
        """What the manager put there, which no child process shall see: they are not the ones it listens to."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watched = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        watchdog_usec = environment.pop("WATCHDOG_USEC", "")
        usable = address[:1] in ("/", "@")
        if address and not usable:
            log.warning("NOTIFY_SOCKET is %r, which is no path and no abstract name: nothing is sent there", address)
        return cls(
            address if usable else "",
            int(watchdog_usec) / _SECOND_USEC if watched and watchdog_usec.isdecimal() else 0.0,
        )


class Notifier:
    """Sends lines to the manager and never waits for it: what it has no room for now goes with the next ones."""

    def __init__(self, address: str) -> None:
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._unsent: list[str] = []
        self._lost = False

    def send(self, *lines: str) -> None:
        self._unsent = [*self._unsent, "\n".join(lines)][-UNSENT_MAX:]
        try:
            while self._unsent:
                self._socket.sendto(self._unsent[0].encode(), self._address)
                del self._unsent[0]
                self._lost = False
        except OSError as error:
            if not self._lost:
                log.warning("the service manager does not hear us (%s): it may end the daemon", error)
            self._lost = True

    def close(self) -> None:
        self._socket.close()


class ServiceManager:
    """Tells the manager how the daemon is, from `watch` to `close`. Used from the loop only.

    `sentence` is the daemon's state in one line; a start goes on as long as that changes.
    """

    def __init__(self, supervision: Supervision, loop: asyncio.AbstractEventLoop) -> None:
        self._notifier = Notifier(supervision.address) if supervision.address else None
        self._watched = supervision.watchdog_s > 0
        self._beat_s = min(BEAT_S, supervision.watchdog_s / BEATS_PER_WATCHDOG) if self._watched else BEAT_S
        self._loop = loop
        self._sentence: Callable[[], str] = lambda: "starting"
        self._told = ""
        self._told_at_s = loop.time()
        self._ready = self._stopping = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, sentence: Callable[[], str]) -> None:
        """Begin to send the line, and to feed the watchdog."""
        self._sentence = sentence
        if self._notifier is not None:
            self._beat()

    def ready(self) -> None:
        """The first time: what was begun at start is done."""
        if not self._ready and not self._stopping:
            self._ready = True
            self._send("READY=1", *self._news())

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """A configuration is read again. Not told before the daemon is ready: the manager would take it for that."""
        told = self._ready and not self._stopping
        if told:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            if told and not self._stopping:
                self._send("READY=1", *self._news())

    def stopping(self, drain_s: float) -> None:
        """The daemon ends within `drain_s` and what closing takes."""
        if not self._stopping:
            self._stopping = True
            self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={_usec(drain_s + CLOSE_S_MAX)}", *self._news())

    def close(self) -> None:
        """The last word; then silence."""
        if self._timer is not None:
            self._timer.cancel()
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        lines = ["WATCHDOG=1"] if self._watched else []
        if self._loop.time() >= self._told_at_s:
            self._told_at_s = self._loop.time() + BEAT_S
            lines += self._news()
        if lines:
            self._send(*lines)

    def _news(self) -> list[str]:
        """The line, if it is another one now."""
        sentence = self._sentence().replace("\n", " ")[:STATE_CHARS_MAX]
        if sentence == self._told:
            return []
        self._told = sentence
        going_on = not self._ready and not self._stopping
        return [f"STATUS={sentence}", *([f"EXTEND_TIMEOUT_USEC={_usec(PROGRESS_S_MAX)}"] if going_on else [])]

    def _send(self, *lines: str) -> None:
        if self._notifier is not None:
            self._notifier.send(*lines)


def _usec(seconds: float) -> int:
    return round(seconds * _SECOND_USEC)
