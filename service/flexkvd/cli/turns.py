"""Which request of a trace a free client serves next: calls of one session go one after another.

A session's next call is made after the answer to its last one, so it finds what that one saved; two
clients that served both at once would miss what no engine would have missed. Owns the order, and waits
where there is nothing to hand out yet; serves nothing itself. `traffic` asks from every client's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from flexkv_py.traces import TraceRequest

AHEAD_MAX = 64
"""Requests that wait for their session while later ones are served; with as many waiting, all wait."""


class Turns:
    """Hands out the requests of a trace in its order, but for those whose session is being served."""

    def __init__(self, requests: Iterator[TraceRequest]) -> None:
        self._requests = requests
        self._waiting: deque[TraceRequest] = deque()
        self._served: set[int] = set()
        self._changed = threading.Condition()
        self._over = False

    @contextmanager
    def next(self) -> Iterator[TraceRequest | None]:
        """The request to serve within the context; None when there is none left. Waits for its session's turn."""
        with self._changed:
            while (request := self._take()) is None and self._waiting:
                self._changed.wait()
            if request is not None and request.session is not None:
                self._served.add(request.session)
        try:
            yield request
        finally:
            if request is not None and request.session is not None:
                with self._changed:
                    self._served.remove(request.session)
                    self._changed.notify_all()

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._changed.notify_all()

    def _take(self) -> TraceRequest | None:
        """The first request whose session is free, if one is near enough."""
        if self._over:
            return None
        free = next(filter(self._is_free, self._waiting), None)
        if free is not None:
            self._waiting.remove(free)
            return free
        while len(self._waiting) < AHEAD_MAX:
            request = next(self._requests, None)
            if request is None:
                return None
            if self._is_free(request):
                return request
            self._waiting.append(request)
        return None

    def _is_free(self, request: TraceRequest) -> bool:
        if request.session is None:
            return True
        return request.session not in self._served and not self._waits_before(request)

    def _waits_before(self, request: TraceRequest) -> bool:
        """An earlier call of the same session waits: this one stays behind it."""
        for earlier in self._waiting:
            if earlier is request:
                return False
            if earlier.session == request.session:
                return True
        return False
