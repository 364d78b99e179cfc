"""Gates of loads: words in registered memory that say when a chunk is there, for a stream to wait on or for the host.

Owns which load an array of words belongs to, and that every gate is opened though the daemon is lost. Knows no torch:
words on a device are reached by what the embedder hands in. `client.session` and both links call `GatedLoads`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol

from flexkv_py.client import requests
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.gates import GATE_BYTES, gate_value, has_failed, is_open, next_generation
from flexkv_py.wire.messages import GateArray

GATE_GRACE_S = 0.5
"""A daemon that left a gate shut for so long after its load's deadline is lost."""
POLL_S_MIN, POLL_S_MAX = 20e-6, 1e-3
"""Pauses of a host that waits for a gate: the first, and the longest."""

OVERDUE = "it left gates of a load shut beyond the load's deadline"
"""Why a connection whose daemon hangs is given up."""

_log = logging.getLogger(__name__)


class GateState(Enum):
    """What a gate says of its chunk."""

    SHUT = "shut"
    OPEN = "open"
    FAILED = "failed"
    """Open, for nobody shall wait for ever, and the chunk is not there."""


class GateWords(Protocol):
    """How the host reaches the words of an array, from any thread. It may not block for long, nor call a client."""

    def read(self, chunk: int) -> int: ...

    def write(self, chunk: int, value: int) -> None:
        """Store a u32 at once: no stream that waits for a gate may be waited for."""
        ...


class MappedWords:
    """Words in memory of the host, such as an mmap of a registered memfd."""

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer.cast("B").cast("I")

    def read(self, chunk: int) -> int:
        return self._words[chunk]

    def write(self, chunk: int, value: int) -> None:
        self._words[chunk] = value


class Gates:
    """One word per chunk, from `offset` of a registered memory on, where no page lies; one load at a time uses them.

    `words` are cleared: no load may be using them.
    """

    def __init__(self, offset: int, chunk_count: int, words: GateWords) -> None:
        self.offset = offset
        self.chunk_count = chunk_count
        self._words = words
        self._generation = 0
        for chunk in range(chunk_count):
            words.write(chunk, 0)

    @classmethod
    def mapped(cls, buffer: mmap.mmap | bytearray | memoryview, offset: int, chunk_count: int) -> Gates:
        """Gates in memory of the host: `buffer` is all of the registered memory. Raises BAD_ARGUMENT."""
        whole = memoryview(buffer).cast("B")
        words = whole[offset : offset + GATE_BYTES * chunk_count]
        if offset < 0 or offset % GATE_BYTES or words.nbytes != GATE_BYTES * chunk_count or whole.readonly:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"no gates for {chunk_count} chunks from offset {offset} of {whole.nbytes} bytes: give a writable "
                f"buffer with {GATE_BYTES} bytes for each chunk, and an offset that {GATE_BYTES} divides",
            )
        return cls(offset, chunk_count, MappedWords(words))

    @property
    def value(self) -> int:
        """What a stream waits for, by greater or equal with wrap-around: that of the load begun last."""
        return gate_value(self._generation)

    def state(self, chunk: int) -> GateState:
        """Of the load begun last; all are open before the first. Never waits."""
        value = self._words.read(chunk)
        if not is_open(value, self._generation):
            return GateState.SHUT
        return GateState.FAILED if has_failed(value) else GateState.OPEN

    def is_open(self, chunk: int) -> bool:
        """Whether who waits for it goes on, whatever came of its chunk."""
        return self.state(chunk) is not GateState.SHUT

    def wait(self, chunk: int, timeout_s: float | None = None) -> GateState:
        """Look until it is open, at most so long; each load opens it, at the latest soon after its deadline."""
        end_s = requests.wait_end_s(time.monotonic(), timeout_s)
        for pause_s in _pauses():
            state = self.state(chunk)
            if state is not GateState.SHUT or time.monotonic() >= end_s:
                return state
            time.sleep(pause_s)
        raise AssertionError("pauses have no end")

    async def wait_async(self, chunk: int, timeout_s: float | None = None) -> GateState:
        """`wait`, for a program on a loop."""
        end_s = requests.wait_end_s(time.monotonic(), timeout_s)
        for pause_s in _pauses():
            state = self.state(chunk)
            if state is not GateState.SHUT or time.monotonic() >= end_s:
                return state
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses have no end")

    # --------------------------------------------------------- for clients

    @property
    def all_open(self) -> bool:
        """Nothing is written there any more: each gate is written once."""
        return all(self.is_open(chunk) for chunk in range(self.chunk_count))

    def begin(self) -> GateArray:
        """Use them for the next load. Raises BAD_ARGUMENT while the last one has not opened them all."""
        if not self.all_open:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                "the last load on these gates has not opened them all: wait for it, or use other gates beside it",
            )
        self._generation = next_generation(self._generation)
        return GateArray(self.offset, self._generation)

    def give_up(self) -> None:
        """Open as failed what is shut: the daemon writes there no more, or its next write changes nothing."""
        for chunk in range(self.chunk_count):
            if not self.is_open(chunk):
                self._words.write(chunk, gate_value(self._generation, failed=True))


class GateWatch:
    """A thread beside the blocking client's connection that ends it when a load's gates are not open in time.

    Begun by the first gated load of a connection. `lock` is the client's, and held by who calls `look` and `close`.
    """

    def __init__(self, loads: GatedLoads, lock: threading.Lock, lose: Callable[[str], None]) -> None:
        self._loads = loads
        self._lose = lose
        self._changed = threading.Condition(lock)
        self._closed = False
        self._sleeps_until_s = math.inf
        self._thread = threading.Thread(target=self._run, name="flexkv-gates", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """A load was begun: wake up if it must be over before all others."""
        check_s = self._loads.next_check_s
        if check_s is not None and check_s < self._sleeps_until_s:
            self._changed.notify()

    def close(self) -> None:
        """The connection is lost."""
        self._closed = True
        self._changed.notify()

    def join(self) -> None:
        """Return when the thread has ended; the lock is not held."""
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                check_s, now_s = self._loads.next_check_s, time.monotonic()
                if check_s is None or check_s > now_s:
                    self._sleeps_until_s = math.inf if check_s is None else check_s
                    self._changed.wait(None if check_s is None else check_s - now_s)
                elif self._loads.overdue(now_s):
                    self._lose(OVERDUE)


class GatedLoads:
    """Loads of one connection whose gates may be shut, by when the daemon must have opened them.

    One for each `Gates` in use; a load that is over stays until its deadline, or until its gates are used again.
    """

    def __init__(self) -> None:
        self._ends_s: dict[Gates, float] = {}

    def begin(self, gates: Gates, end_s: float) -> GateArray:
        """A load that is about to be sent; it must be over at `end_s`. Raises BAD_ARGUMENT."""
        array = gates.begin()
        self._ends_s[gates] = end_s
        return array

    def give_up(self, gates: Gates, value: int) -> None:
        """The daemon opens nothing for the load that waits for `value`. Others may have begun the next one already."""
        if gates.value == value:
            self._ends_s.pop(gates, None)
            gates.give_up()

    def lose(self) -> None:
        """The daemon is lost: nobody else opens these gates."""
        for gates in self._ends_s:
            try:
                gates.give_up()
            except Exception:  # whoever unmapped them waits for none; all others must be opened all the same
                _log.exception("gates of a load could not be opened")
        self._ends_s.clear()

    @property
    def next_check_s(self) -> float | None:
        """When to ask `overdue`; None while nothing is gated."""
        return min(self._ends_s.values(), default=None)

    def overdue(self, now_s: float) -> bool:
        """Whether the daemon left a gate shut that it must have opened by now; forgets loads that are over."""
        due = [gates for gates, end_s in self._ends_s.items() if end_s <= now_s]
        for gates in due:
            try:
                if not gates.all_open:
                    return True
            except Exception:  # all others must be looked at all the same
                _log.exception("gates of a load could not be looked at")
            del self._ends_s[gates]
        return False


def over_s(now_s: float, deadline_s: float) -> float:
    """When a gated load that is sent now is over at the latest, or its daemon lost. Raises BAD_ARGUMENT."""
    if not requests.milliseconds(deadline_s, "deadline_s"):
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            "a load with gates and no deadline of its own: give deadline_s, by which a daemon that hangs is noticed",
        )
    return now_s + deadline_s + GATE_GRACE_S


def _pauses() -> Iterator[float]:
    pause_s = POLL_S_MIN
    while True:
        yield pause_s
        pause_s = min(POLL_S_MAX, 2 * pause_s)
