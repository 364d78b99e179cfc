"""The sparse policy: what leaves DRAM of running requests, and what comes back ahead of need.

Coldest by heat leaves first. What comes back are *hunches*: other chunks of a block for which a step fails, what an
idle request had when it takes steps again, neighbours, and chunks whose selections rise. Each kind of guess is judged
by its own record and followed only while it pays (`hunches`). Where nothing is cold, what leaves is missed at once:
then the bar is above what guesses reach, and the policy is an eviction order and nothing else.

Pure; one per planner, which calls it through `RowPolicy`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from math import log2

from flexkv_py.rows.heat import HALF_LIFE_REPORTS, IDLE_HALF_LIVES, WEIGHTS, ColdOrder, Heat, Mark, StepClock
from flexkv_py.rows.hunches import PAYS_MIN, Kind, Spot, Watch
from flexkv_py.rows.messages import AbsentEntry, HeatEntry
from flexkv_py.rows.policy import Hunch, Place, Reason, RequestId

SIBLINGS_MAX = 8
"""How far from a missing chunk others of its block are thought of."""

RISING_LEVELS = 8
"""Rising chunks are judged by how hot they are, in powers of two."""

ABSENT_WEIGHT = 1.0
"""Of a failed step, beside log(1 + n) of n selections."""

BESIDE_HALF_LIVES = 20.0
"""A chunk beside one that is selected now leaves as if it had been selected itself five reports ago."""

AGES_MAX = 5
"""Siblings and chunks of a turn are judged by how many reports ago they, or those beside them, were hot; older ones are
not followed until they have been shown to pay."""

TURN_GUESSES_MAX = 64
"""For one turn: whether they were right is known only when it is over."""

OPEN_MAX = 8192
"""Guesses that wait to be taken or are on their way; beyond that the oldest are given up unjudged."""

GUESSES_PER_EVENT_MAX = 1024
COLD_SHARE_MAX = 0.5
"""Nothing is cold when more than this share of what leaves is missed within the horizon."""

KEPT_HALF_LIVES = 0.5
"""What came because of a guess goes last for five steps, or it would go again before the step it came for."""

FAVOUR_SHARE_MIN = 0.85
"""Of what leaves, to be missed soon: then requests make each other fail, and one at a time is spared."""

FAVOUR = 4.0
"""How much hotter than it is the favoured request counts, in half-lives: its chunks stay while there are others."""

FAVOUR_HALF_LIVES = 4.0
"""Then it is another's turn."""

SPECULATION_MARGIN = 0.1
"""By how much a guess must be likelier than that what leaves for it is missed."""


class SparseRows:
    """Heat per (request, block, chunk), the order in which they leave, and guesses at what is needed next."""

    def __init__(self, *, guesses: bool = True) -> None:
        """`guesses`: false: an order of eviction and nothing else, whose reads are demand."""
        self._guesses = guesses
        self._time = StepClock()
        self._heats: dict[RequestId, Heat] = {}
        self._numbers = 0
        self._order = ColdOrder(BESIDE_HALF_LIVES)
        self._kinds: dict[tuple[Reason, int, int], Kind] = {}
        self._open: OrderedDict[Spot, Kind] = OrderedDict()
        self._urgent: deque[tuple[Heat, int, int]] = deque(maxlen=OPEN_MAX)
        self._likely: deque[tuple[Heat, int, int]] = deque(maxlen=OPEN_MAX)
        self._watch = Watch()
        self._gone = Watch()
        self._missed_again = Kind(None)
        self._favoured: Heat | None = None
        self._favoured_at = 0.0
        self.predicted: Counter[Reason] = Counter()
        self.came_true: Counter[Reason] = Counter()

    @property
    def missed_share(self) -> float:
        """Share of the chunks that left of late for which a step failed soon after."""
        return self._missed_again.share

    @property
    def nothing_is_cold(self) -> bool:
        """Whether whatever leaves is needed again at once: then nothing is brought back on mere likelihood."""
        return self.missed_share > COLD_SHARE_MAX

    def shares(self) -> dict[tuple[Reason, int, int], float]:
        """How many of late were right, for each kind of guess that was ever made."""
        return {name: kind.share for name, kind in self._kinds.items()}

    # ------------------------------------------------------------ what it is told

    def granted(self, place: Place, now_ns: int) -> None:
        self._time.advance(now_ns)
        heat = self._heat(place.request)
        block, chunk = place.block, place.chunk
        heat.reach(block, chunk)
        floor = heat.clock(self._time.now) + log2(WEIGHTS[1])
        heat.scores[chunk][block] = max(heat.scores[chunk][block], floor)
        kind = self._open.pop((heat.number, block, chunk), None)
        heat.marks[chunk][block] = Mark.KNOWN if kind is None else Mark.AHEAD
        if kind is None:
            heat.ahead.pop((block, chunk), None)  # it was granted already: a failed step needs it
        else:
            heat.ahead[block, chunk] = kind, heat.reports, self._time.now
        self._order.add(heat, block, chunk)

    def revoked(self, place: Place) -> None:
        heat = self._heat(place.request)
        block, chunk = place.block, place.chunk
        heat.marks[chunk][block] = Mark.BELOW
        kind, reports, _ = heat.ahead.pop((block, chunk), (None, 0, 0.0))
        if kind is not None and heat.reports > reports:  # else whether it was selected is not known
            kind.learn_from_what_came(right=False)
        self._gone.begin((heat.number, block, chunk), self._missed_again, self._time.now)
        if self._time.now - heat.alive_at > IDLE_HALF_LIVES / 2:
            heat.left.append((block, chunk))

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        heat = self._alive(request, now_ns)
        if heat.reports and not heat.resumed:
            self._time.reported(now_ns - heat.reported_ns)
        heat.reported_ns, heat.resumed = now_ns, False
        clock = heat.clock(self._time.now)
        bar = max(PAYS_MIN, self.missed_share + SPECULATION_MARGIN)
        guesses = GUESSES_PER_EVENT_MAX
        for block, chunk in heat.count(entries, clock):
            if heat.marks[chunk][block] == Mark.AHEAD:
                heat.marks[chunk][block] = Mark.KNOWN
                self._came_true(heat.ahead.pop((block, chunk))[0])
            elif guesses:
                guesses -= 1
                level = int(heat.scores[chunk][block] - clock)
                self._guess(heat, block, chunk, self._kind(Reason.RISING, max(0, min(level, RISING_LEVELS))), bar)

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        heat = self._alive(request, now_ns)
        entries = list(entries)
        for _, block, chunk in entries:
            heat.touch(block, chunk, heat.clock(self._time.now), ABSENT_WEIGHT)
            spot = heat.number, block, chunk
            for watched in (self._watch.end(spot), self._gone.end(spot)):
                if watched is not None:
                    watched.learn(right=True)
            came = self._open.pop(spot, None)
            if came is not None:
                self._came_true(came)
        self._favour(heat)
        for _, block, chunk in entries[:GUESSES_PER_EVENT_MAX]:
            self._think_around(heat, block, chunk)

    def resumed(self, request: RequestId, now_ns: int) -> None:
        self._alive(request, now_ns)

    def detached(self, request: RequestId) -> None:
        heat = self._heats.pop(request, None)
        if heat is not None:
            heat.end()

    # ------------------------------------------------------------ what it says

    def coldest(self, now_ns: int) -> Iterator[Place]:
        since, fresh = self._time.advance(now_ns) - KEPT_HALF_LIVES, list[Place]()
        for heat, block, chunk in self._order.coldest():
            place = Place(heat.request, block, chunk)
            if heat.marks[chunk][block] == Mark.AHEAD and heat.ahead[block, chunk][2] > since:
                fresh.append(place)
            else:
                yield place
        yield from fresh

    def ahead(self, now_ns: int) -> Iterator[Hunch]:
        self._time.advance(now_ns)
        for waiting in (self._urgent, self._likely):
            while waiting:
                heat, block, chunk = waiting.popleft()
                kind = self._open.get((heat.number, block, chunk))
                attached = self._heats.get(heat.request) is heat
                if kind is not None and attached and heat.marks[chunk][block] == Mark.BELOW:
                    assert kind.reason is not None
                    yield Hunch(Place(heat.request, block, chunk), kind.reason)

    # ------------------------------------------------------------ thinking

    def _heat(self, request: RequestId) -> Heat:
        heat = self._heats.get(request)
        if heat is None:
            self._numbers += 1
            heat = self._heats[request] = Heat(self._numbers, request)
            heat.alive_at = self._time.now
        return heat

    def _alive(self, request: RequestId, now_ns: int) -> Heat:
        """The request takes steps. If it did not for a while, what left meanwhile is wanted back, the hottest first."""
        self._time.advance(now_ns)
        self._watch.expire(self._time.now)
        self._gone.expire(self._time.now)
        heat = self._heat(request)
        silent = self._time.now - heat.alive_at
        heat.alive_at = self._time.now
        if silent > IDLE_HALF_LIVES:
            heat.idled += silent
            heat.resumed = True
            for block, chunk in islice(reversed(heat.left), TURN_GUESSES_MAX):
                self._guess(heat, block, chunk, self._aged_kind(heat, block, chunk, Reason.TURN), PAYS_MIN)
            heat.left.clear()
        return heat

    def _favour(self, heat: Heat) -> None:
        """A step of this request fails. Where requests make each other fail, let it keep what it has for some steps.

        When the chunks of all do not fit, whatever goes is missed by a step that is being tried, and all requests fail
        for each other's sake. One at a time is then spared (load control: P. J. Denning, "Working sets past and
        present", IEEE Trans. Software Engineering 1980).
        """
        favoured, now = self._favoured, self._time.now
        crowded = self.missed_share > FAVOUR_SHARE_MIN
        if favoured is not None and (not crowded or now - self._favoured_at > FAVOUR_HALF_LIVES):
            favoured.favour = 0.0
            self._favoured = favoured = None
        if favoured is None and crowded:
            heat.favour = FAVOUR
            self._favoured, self._favoured_at = heat, now

    def _think_around(self, heat: Heat, block: int, chunk: int) -> None:
        """A step fails for this chunk: which others may it, or the next ones, fail for?"""
        for distance in range(1, min(SIBLINGS_MAX, len(heat.marks) - 1 - chunk) + 1):
            if heat.has(block, chunk + distance):
                kind = self._aged_kind(heat, block, chunk + distance, Reason.SIBLING, distance)
                self._guess(heat, block, chunk + distance, kind, PAYS_MIN)

    def _guess(self, heat: Heat, block: int, chunk: int, kind: Kind, bar: float) -> None:
        """Follow the guess that this chunk is needed, or watch what comes of it; unless that was guessed already."""
        spot = heat.number, block, chunk
        if (
            not self._guesses
            or not heat.has(block, chunk)
            or heat.marks[chunk][block] != Mark.BELOW
            or spot in self._open
        ):
            return
        if not kind.follow(bar):
            if spot not in self._watch:
                self._watch.begin(spot, kind, self._time.now)
            return
        assert kind.reason is not None
        self.predicted[kind.reason] += 1
        self._open[spot] = kind
        (self._urgent if kind.urgent else self._likely).append((heat, block, chunk))
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)

    def _kind(self, reason: Reason, distance: int, age: int = 0) -> Kind:
        kind = self._kinds.get((reason, distance, age))
        if kind is None:
            kind = self._kinds[reason, distance, age] = Kind(reason, proven=reason.urgent and age < AGES_MAX)
        return kind

    def _aged_kind(self, heat: Heat, block: int, chunk: int, reason: Reason, distance: int = 0) -> Kind:
        since = heat.clock(self._time.now) - max(heat.scores[chunk][block], heat.beside(block, chunk))
        return self._kind(reason, distance, int(min(max(since * HALF_LIFE_REPORTS, 0), AGES_MAX)))

    def _came_true(self, kind: Kind) -> None:
        assert kind.reason is not None
        self.came_true[kind.reason] += 1
        kind.learn_from_what_came(right=True)
