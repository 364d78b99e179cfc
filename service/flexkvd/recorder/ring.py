"""The recorder itself: the events of one planner in a ring of bounded bytes.

Owns the ring. Called by the engine with every event before the planner handles it, and by whoever wants a dump. On the
way of an event it only writes bytes to the open piece; a full piece is compressed on a thread of its own. When the
ring is full the oldest piece goes, and from then on what is dumped says that it is not complete.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

import flexkv_py
from flexkv_py.core.messages import Event
from flexkv_py.core.planner import Planner
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.recorder.digest import digest_of, witness_of
from flexkvd.recorder.events import EventCodec
from flexkvd.recorder.file import Piece, Recording, compress, pack

log = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""Before compression."""
PIECES_MIN = 8
"""A small ring has smaller pieces, so that it forgets a little at a time."""
EVENTS_PER_MARK = 256
"""A replay that goes astray is found out within so many events."""
DIGEST_BLOCKS_MAX = 50_000
"""A larger state gets no digest, only a mark: the daemon would stand still for more than half a second."""


@dataclass(slots=True)
class _Sealed:
    first: int
    first_ns: int
    events: int
    records: int
    raw_bytes: int
    frame: Future[bytes]

    @property
    def bytes(self) -> int:
        return len(self.frame.result()) if self.frame.done() else self.raw_bytes

    def piece(self) -> Piece:
        return Piece(self.first, self.first_ns, self.events, self.records, self.frame.result())


class Recorder:
    """See the module's docstring. `capacity_bytes` 0: nothing is recorded."""

    def __init__(self, planner: Planner, capacity_bytes: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.capacity_bytes = capacity_bytes
        self.dumps = 0
        self._planner = planner
        self._clock_ns = clock_ns
        # As it was made, whatever of it changes later: that comes by events.
        self._config = msgspec.to_builtins(planner.state.config, builtin_types=(bytes,))
        self._codec = EventCodec(planner.event_types)
        self._piece_bytes = min(PIECE_BYTES, capacity_bytes // PIECES_MIN)
        self._sealed: deque[_Sealed] = deque()
        self._lost = 0  # events whose piece has gone
        self._events = 0
        self._open = bytearray()
        self._open_first = 1
        self._open_first_ns = 0
        self._open_marks = 0
        self._pool = ThreadPoolExecutor(1, "recorder")  # its thread starts with the first full piece

    def note(self, event: Event) -> None:
        """Record an event that the planner is about to handle."""
        if not self.capacity_bytes:
            return
        records = self._open
        if not records:
            self._open_first_ns = event.now_ns
        if not self._events % EVENTS_PER_MARK:
            self._codec.put_mark(witness_of(self._planner.state), records)
            self._open_marks += 1
        self._events += 1
        try:
            self._codec.put(event, records)
        except Exception:  # a recorder must not be what ends the daemon
            self._give_up(event)
        if len(records) >= self._piece_bytes > 0:
            self._seal()

    def dump(self, why: str = "asked", failure: str = "") -> bytes:
        """A file with everything the ring has. Raises UNSUPPORTED when nothing is recorded."""
        if not self.capacity_bytes:
            raise FlexKVError(ErrorCode.UNSUPPORTED, "the flight recorder is off: give it room by [recorder] bytes")
        state = self._planner.state
        pieces = [sealed.piece() for sealed in self._sealed]
        if self._open:
            count = self._events - self._open_first + 1
            frame = compress(self._open)
            pieces.append(Piece(self._open_first, self._open_first_ns, count, count + self._open_marks, frame))
        blocks = sum(len(index.blocks) for index in state.indexes.values())
        self.dumps += 1
        return pack(
            Recording(
                program=flexkv_py.__version__,
                taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
                why=why,
                failure=failure,
                config=self._config,
                shapes=self._codec.shapes,
                events=self._events,
                complete=not self._lost,
                pieces=pieces,
                mark=witness_of(state),
                digest=digest_of(state) if blocks <= DIGEST_BLOCKS_MAX else "",
            )
        )

    def facts(self) -> dict[str, object]:
        """What the ring holds: events, bytes, since when, and whether that is everything since the start."""
        first_ns = self._sealed[0].first_ns if self._sealed else self._open_first_ns
        kept = self._events - self._lost
        return {
            "events": kept,
            "bytes": len(self._open) + sum(sealed.bytes for sealed in self._sealed),
            "capacity_bytes": self.capacity_bytes,
            "complete": not self._lost,
            "since_s": (self._clock_ns() - first_ns) / 1e9 if kept else 0.0,
            "dumps": self.dumps,
        }

    def close(self) -> None:
        """End its thread; what was recorded can still be dumped."""
        self._pool.shutdown()

    def _give_up(self, event: Event) -> None:
        """An event cannot be written down, so nothing after it could be replayed: be off from now on."""
        log.exception("the flight recorder is off until the next start: a bug at %s", type(event).__name__)
        self.capacity_bytes = self._piece_bytes = 0
        self._lost = self._events
        self._sealed.clear()
        self._open.clear()

    def _seal(self) -> None:
        """The open piece is full: begin the next, and let go of as many old ones as there must be room for."""
        count = self._events - self._open_first + 1
        full, self._open = self._open, bytearray()
        frame = self._pool.submit(compress, full)
        sealed = _Sealed(self._open_first, self._open_first_ns, count, count + self._open_marks, len(full), frame)
        self._sealed.append(sealed)
        self._open_first, self._open_marks = self._events + 1, 0
        room = self.capacity_bytes - self._piece_bytes
        used = sum(each.bytes for each in self._sealed)
        while used > room:
            gone = self._sealed.popleft()
            used -= gone.bytes
            self._lost += gone.events
