"""What happens, told to everybody who listens: server-sent events, encoded once for all listeners.

Owns the listeners and their queues. One who reads too slowly loses the oldest lines, never anybody else's time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError

LISTENERS_MAX = 16
LINES_WAITING_MAX = 64
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": still here\n\n"


class Feed:
    """Told by `Sampler` and `Jobs`; listened to by GET /v1/events."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._closed = False

    def tell(self, event: str, data: dict[str, Any] | msgspec.Raw) -> None:
        """One event for all listeners; costs nothing while nobody listens."""
        if not self._listeners:
            return
        lines = b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
        for listener in self._listeners:
            listener.hear(lines)

    def listen(self) -> AsyncIterator[bytes]:
        """Everything told from now on, as lines of text/event-stream. Raises FlexKVError(THROTTLED)."""
        if len(self._listeners) >= LISTENERS_MAX:
            raise FlexKVError(
                ErrorCode.THROTTLED,
                f"{LISTENERS_MAX} listen to events already: close a dashboard, or read /v1/samples instead",
                retry_after_s=5.0,
            )
        return self._lines(_Listener())

    def close(self) -> None:
        """Let all listeners go."""
        self._closed = True
        for listener in self._listeners:
            listener.wake()

    async def _lines(self, listener: _Listener) -> AsyncIterator[bytes]:
        self._listeners.add(listener)  # not before somebody reads: else one who left at once would never be let go
        try:
            yield KEEP_ALIVE  # the headers leave with it, so that a client knows it is heard
            while not self._closed:
                yield await listener.next()
        finally:
            self._listeners.discard(listener)


class _Listener:
    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=LINES_WAITING_MAX)
        self._arrived = asyncio.Event()

    def hear(self, lines: bytes) -> None:
        self._lines.append(lines)
        self._arrived.set()

    def wake(self) -> None:
        self._arrived.set()

    async def next(self) -> bytes:
        """What was told since, or a comment after `KEEP_ALIVE_S` of silence."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), KEEP_ALIVE_S)
        self._arrived.clear()
        lines = b"".join(self._lines) or KEEP_ALIVE
        self._lines.clear()
        return lines
