"""How hot the chunks of a running request are: selections counted with exponential decay, and never a scan.

A selection of long ago counts half as much with every half-life (LRFU: Lee et al., IEEE Trans. Computers 2001). What
is kept of a chunk is its *score*: log2 of its heat, plus the time of that, in half-lives. Decay lowers all heats by
the same factor, so a score changes only when something is counted, and the order of what is not counted stays as it
is for ever. Counts weigh by their logarithm: a page selected 400 times in a report is not a hundred times as likely
to be needed next as one selected four times.

Owns scores and marks of one request, and the order of all granted chunks. Which of them may leave, and what comes
back, is `sparse`'s, which alone calls it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from math import log1p, log2

from flexkv_py.rows.hunches import Kind
from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import RequestId

BLOCKS_MAX = 1 << 20
CHUNKS_MAX = 1 << 8
GROWTH_BLOCKS = 256
COUNT_MAX = 4095
WEIGHTS = tuple(log1p(count) for count in range(COUNT_MAX + 1))
LEFT_MAX = 1 << 15
STEPS_PER_HALF_LIFE = 16
"""Resolution of the order: chunks whose scores differ by less leave in any order."""


HALF_LIFE_REPORTS = 0.25
"""Ten steps: longer memory was measured to keep what was hot and is not any more."""

INTERVAL_NS = 400_000_000
"""Between two reports of a request, until it is measured."""

INTERVAL_WEIGHT = 0.95
COLD = float("-inf")


class StepClock:
    """Time in half-lives of heat. Selections change with steps, so it goes as fast as requests take them.

    A half-life is a fixed part of the mean time between two reports of a request.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._now_ns = 0
        self._interval_ns = float(INTERVAL_NS)

    def advance(self, now_ns: int) -> float:
        """The time now."""
        self.now += (now_ns - self._now_ns) / (self._interval_ns * HALF_LIFE_REPORTS)
        self._now_ns = now_ns
        return self.now

    def reported(self, since_ns: int) -> None:
        """A request reports that reported so long ago last. Other ranks' reports of the same steps do not count."""
        if since_ns > self._interval_ns / 4:
            self._interval_ns += (1 - INTERVAL_WEIGHT) * (since_ns - self._interval_ns)


IDLE_HALF_LIVES = 6.0
"""A request that gave no sign of life for so long is idle: its heat stands still until it gives one."""


class Mark(IntEnum):
    """Where one chunk of a request is."""

    KNOWN = 0
    """Granted, and nothing is to be learnt from its next selection."""
    BELOW = 1
    """Not granted."""
    AHEAD = 2
    """Granted because of a hunch, and not selected since."""


class Heat:
    """Scores and marks of one request's chunks, by chunk and block. 10 bytes each; blocks come as they are named."""

    def __init__(self, number: int, request: RequestId) -> None:
        self.number = number
        self.request = request
        self.idled = 0.0
        """Half-lives of its life in which it took no steps."""
        self.favour = 0.0
        """By how much its chunks count as hotter than they are, in half-lives."""
        self.alive_at = 0.0
        """The policy's clock at its last sign of life."""
        self.reported_ns = 0
        self.resumed = False
        """It was idle since its last report."""
        self.left: deque[tuple[int, int]] = deque(maxlen=LEFT_MAX)  # (block, chunk) that left while it was idle
        self.reports = 0
        self.ahead: dict[tuple[int, int], tuple[Kind, int, float]] = {}
        """(block, chunk) marked AHEAD: the kind of guess; reports heard, and the policy's clock, when it came."""
        self.blocks = 0
        """All blocks ever named are below this."""
        self.scores: list[array[float]] = []
        self.marks: list[bytearray] = []
        self.listed: list[bytearray] = []
        """Whether the chunk stands in the order: once at most, granted or not any more."""

    def clock(self, now: float) -> float:
        """The request's own time, in half-lives: it stands still while the request is idle."""
        return (self.alive_at if now - self.alive_at > IDLE_HALF_LIVES else now) - self.idled

    def reach(self, block: int, chunk: int) -> None:
        """Make room for this chunk of this block."""
        assert 0 <= block < BLOCKS_MAX, block
        assert 0 <= chunk < CHUNKS_MAX, chunk
        while len(self.scores) <= chunk:
            self.scores.append(array("d"))
            self.marks.append(bytearray())
            self.listed.append(bytearray())
        self.blocks = max(self.blocks, block + 1)
        missing = block + 1 - len(self.scores[chunk])
        if missing > 0:
            count = -(-missing // GROWTH_BLOCKS) * GROWTH_BLOCKS
            self.scores[chunk].extend([COLD] * count)
            self.marks[chunk].extend([Mark.BELOW] * count)
            self.listed[chunk].extend(bytes(count))

    def has(self, block: int, chunk: int) -> bool:
        """Whether the request is known to have this chunk of this block."""
        return 0 <= block < self.blocks and chunk < len(self.scores) and block < len(self.scores[chunk])

    def beside(self, block: int, chunk: int) -> float:
        """The better score of the same chunk in the blocks beside it."""
        row = self.scores[chunk]
        return max(row[block - 1] if block else COLD, row[block + 1] if block + 1 < len(row) else COLD)

    def end(self) -> None:
        """The request is over: nothing of it is granted."""
        self.marks = [bytearray([Mark.BELOW]) * len(marks) for marks in self.marks]
        self.ahead.clear()

    def touch(self, block: int, chunk: int, clock: float, weight: float) -> None:
        """Count one event of this weight."""
        self.reach(block, chunk)
        row = self.scores[chunk]
        row[block] = clock + log2(weight + 2.0 ** (row[block] - clock))

    def count(self, entries: Iterable[HeatEntry], clock: float) -> list[tuple[int, int]]:
        """Count a report. Returns (block, chunk) of what was selected and is not `KNOWN`, in the report's order."""
        self.reports += 1
        unknown = []
        scores, marks = self.scores, self.marks
        for _, block, chunk, selected in entries:
            try:
                row = scores[chunk]
                score = row[block]
            except IndexError:  # asking for the length first would cost as much again
                self.reach(block, chunk)
                row = scores[chunk]
                score = row[block]
            weight = WEIGHTS[selected if selected < COUNT_MAX else COUNT_MAX]
            row[block] = clock + log2(weight + 2.0 ** (score - clock))
            if marks[chunk][block]:
                unknown.append((block, chunk))
        return unknown


class ColdOrder:
    """All granted chunks of all requests by score, the coldest first.

    Buckets of scores; a chunk is put where its score is when it is granted, and moved up when the order comes by it
    and finds that it was counted since. Scores only grow, so nothing is ever found too late; only where a favour has
    ended may a chunk stay for as long as that was worth. A chunk counts as hot as those `beside` it, less so many
    half-lives: selections come in clusters, and this tells apart what was not selected for long.
    """

    def __init__(self, beside: float = -COLD) -> None:
        self._beside = beside
        self._buckets: dict[int, list[tuple[Heat, int, int]]] = {}
        self._numbers: list[int] = []  # of the buckets, ascending

    def add(self, heat: Heat, block: int, chunk: int) -> None:
        """The chunk was granted."""
        if not heat.listed[chunk][block]:
            heat.listed[chunk][block] = 1
            self._put(self._number(heat, block, chunk), (heat, block, chunk))

    def coldest(self) -> Iterator[tuple[Heat, int, int]]:
        """Granted chunks, the coldest first. Give it up at any time; who was taken stays until it is not granted."""
        at = 0
        while at < len(self._numbers):
            number = self._numbers[at]
            bucket = self._buckets[number]
            for place in range(len(bucket) - 1, -1, -1):
                entry = heat, block, chunk = bucket[place]
                granted = heat.marks[chunk][block] != Mark.BELOW
                now = self._number(heat, block, chunk)
                if granted and now <= number:
                    yield entry
                    continue
                bucket[place] = bucket[-1]  # that one was seen already
                bucket.pop()
                if granted:
                    self._put(now, entry)
                else:
                    heat.listed[chunk][block] = 0
            if not bucket:
                del self._buckets[number]
            at = bisect_right(self._numbers, number)
            if not bucket:
                at -= 1
                del self._numbers[at]

    def _put(self, number: int, entry: tuple[Heat, int, int]) -> None:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = []
            insort(self._numbers, number)
        bucket.append(entry)

    def _number(self, heat: Heat, block: int, chunk: int) -> int:
        score = max(heat.scores[chunk][block], heat.beside(block, chunk) - self._beside)
        return int(STEPS_PER_HALF_LIFE * (score + heat.idled + heat.favour))
