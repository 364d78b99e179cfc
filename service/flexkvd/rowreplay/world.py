"""Requests that decode over a DRAM that is too small, tick by tick, and what that costs.

A tick is the time of one decode step. In each a request tries its next step: its layer groups in turn, and the first
that needs a chunk which is not in DRAM fails it. Then the chunks that group lacks are read, and the whole step is
tried again when they are there; they stay until it succeeds. Everybody else goes on meanwhile. Evicted chunks cost
no bytes (blocks are immutable and whole on SSD); a block that was just filled is written there once.

Not modelled: acknowledgements (a frame is free in the tick in which it is revoked), and a bus of its own speed
between DRAM and HBM. Called by `run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.rows.messages import AbsentEntry, HeatEntry
from flexkv_py.rows.policy import Place, RequestId, RowPolicy
from flexkvd.rowreplay.link import Link, LinkSpeed, Urgency
from flexkvd.rowreplay.needs import TOKENS_PER_BLOCK, RequestNeeds

VICTIMS_AT_ONCE = 64
TICKS_PER_STEP_MAX = 1000
"""Of all requests together, in the mean; beyond that a run is taken for stuck. Those in which nobody has a step do not
count."""


PolicyMaker = Callable[[list[RequestNeeds], list[int]], RowPolicy]
"""From the needs of all requests, and the steps each has done (kept up to date): only the reference heeds these."""


@dataclass(frozen=True)
class WorldRules:
    """`prefill_steps`: the first steps of each request only tell the policy what they select, as a prefill would."""

    room_chunks: int
    speed: LinkSpeed
    tick_ns: int = 25_000_000
    report_steps: int = 16
    report_entries_max: int = 4096
    notice_ticks: int = 4
    prefill_steps: int = 64


@dataclass(slots=True)
class Costs:
    """What was counted since the first quarter of all steps was done. Chunks, where nothing else is said."""

    steps: int = 0
    ticks: int = 0
    """Spent on these steps, by all requests together: `steps` when nobody ever waits."""
    played_ticks: int = 0
    nothing_cold_ticks: int = 0
    """In which the policy found that nothing is cold."""
    turns: int = 0
    """Begun after idle time."""
    turn_ticks: int = 0
    """Spent on the first step of these."""
    failed: int = 0
    """Steps that were tried in vain, each time counted."""
    absents: int = 0
    needed: int = 0
    """By the first try of each step, of what the hot buffers lacked."""
    found: int = 0
    """Of these, in DRAM."""
    row_hits: int = 0
    row_misses: int = 0
    reads: dict[Urgency, int] = field(default_factory=lambda: dict.fromkeys(Urgency, 0))
    writes: int = 0
    guesses_used: int = 0
    """Chunks read ahead of need that a step needed before they left."""
    guesses_wasted: int = 0


class Running:
    """One request: how far it is, and which of its chunks are in DRAM."""

    def __init__(self, number: int, needs: RequestNeeds) -> None:
        self.identity = RequestId(number)
        self.number = number
        self.needs = needs
        groups = len(needs.steps[0].groups)
        self.present: NDArray[np.bool_] = np.zeros((groups, needs.blocks), np.bool_)
        self.coming: NDArray[np.bool_] = np.zeros((groups, needs.blocks), np.bool_)
        self.guessed: NDArray[np.bool_] = np.zeros((groups, needs.blocks), np.bool_)  # read ahead and not needed since
        self.heat = np.zeros((groups, needs.blocks), np.int64)
        self.done = 0
        self.due = 0
        self.begins_turn = False
        self.tried = False
        self.pinned: set[tuple[int, int]] = set()  # (block, group) brought in for the step that fails
        self.lacking: set[tuple[int, int]] = set()  # of these, not there yet

    @property
    def full_blocks(self) -> int:
        """Those before the block that is being written: what there is on SSD."""
        return self.needs.steps[self.done].token_count // TOKENS_PER_BLOCK

    @property
    def over(self) -> bool:
        return self.done == len(self.needs.steps)


class World:
    """One run under one policy."""

    def __init__(self, needs: list[RequestNeeds], policy: PolicyMaker, rules: WorldRules) -> None:
        self.requests = [Running(number, each) for number, each in enumerate(needs)]
        self.costs = Costs()
        self.tick = 0
        self.progress = [0] * len(needs)
        """Steps done, by request."""
        self.policy = policy(needs, self.progress)
        self._rules = rules
        self._link = Link(rules.speed)
        self._free = rules.room_chunks
        self._victims: deque[Place] = deque()  # the coldest as of this tick
        self._steps_total = sum(len(each.steps) - rules.prefill_steps for each in needs)
        self._counting = False
        self._ticks_tried = 0
        self._prefill()

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self.tick * self._rules.tick_ns

    @property
    def steps_done(self) -> int:
        """By all requests together, prefill aside."""
        return sum(request.done - self._rules.prefill_steps for request in self.requests)

    def run_tick(self) -> bool:
        """Play one tick; whether there is another."""
        self.tick += 1
        self._link.refill()
        self._victims.clear()
        for place in self._link.landed(self.tick):
            self._land(place)
        self._ticks_tried += any(not request.over and request.due <= self.tick for request in self.requests)
        for request in self.requests:
            self._play(request)
            self.progress[request.number] = request.done
        for place, reason in self.policy.ahead(self.now_ns):
            self._link.ask(place, Urgency.URGENT if reason.urgent else Urgency.LIKELY, self.tick)
        self._read()
        self.costs.played_ticks += 1
        self.costs.nothing_cold_ticks += getattr(self.policy, "nothing_is_cold", False)
        if not self._counting and 4 * self.steps_done >= self._steps_total:
            self._counting, self.costs = True, Costs()
        if self._ticks_tried > TICKS_PER_STEP_MAX * (self.steps_done + 1):
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"after {self._ticks_tried:,} ticks {self.steps_done:,} steps are done: what the requests need does "
                "not fit, or the link is too slow for it; give more DRAM, a faster link, or fewer requests",
            )
        return not all(request.over for request in self.requests)

    # ------------------------------------------------------------ steps

    def _play(self, request: Running) -> None:
        if request.over or request.lacking:
            return
        if request.due - self.tick == self._rules.notice_ticks:
            self.policy.resumed(request.identity, self.now_ns)
        if self.tick < request.due:
            return
        step = request.needs.steps[request.done]
        first, request.tried = not request.tried, True
        for group, of_group in enumerate(step.groups):
            there = request.present[group][of_group.needed]
            if first:
                self.costs.needed += there.size
                self.costs.found += int(there.sum())
            if not there.all():
                self._fail(request, group, of_group.needed[~there])
                return
        self._succeed(request)

    def _fail(self, request: Running, group: int, blocks: NDArray[np.int32]) -> None:
        self.costs.failed += 1
        self.costs.absents += blocks.size
        absents = [AbsentEntry(request.number, block, group) for block in blocks.tolist()]
        self.policy.absent(request.identity, absents, self.now_ns)
        for _, block, _ in absents:
            request.pinned.add((block, group))
            request.lacking.add((block, group))
            if not request.coming[group, block]:
                self._link.ask(Place(request.identity, block, group), Urgency.DEMAND, self.tick)

    def _succeed(self, request: Running) -> None:
        step = request.needs.steps[request.done]
        self.costs.steps += 1
        ticks = self.tick - request.due + 1
        self.costs.ticks += ticks
        if request.begins_turn:
            self.costs.turns += 1
            self.costs.turn_ticks += ticks
        request.tried = False
        request.pinned.clear()
        self._count(request)
        request.done += 1
        if request.over:
            return
        gap = request.needs.steps[request.done].due - step.due
        request.due = self.tick + gap
        request.begins_turn = gap > 1
        for block in range(step.token_count // TOKENS_PER_BLOCK, request.full_blocks):
            self._fill(request, block)

    def _count(self, request: Running) -> None:
        """The step's selections add to the heat that the next report tells."""
        for group, of_group in enumerate(request.needs.steps[request.done].groups):
            self.costs.guesses_used += int(request.guessed[group][of_group.needed].sum())
            request.guessed[group][of_group.needed] = False
            request.heat[group][of_group.selected] += of_group.counts
            self.costs.row_hits += of_group.hits
            self.costs.row_misses += of_group.misses
        if (request.done + 1) % self._rules.report_steps == 0:
            self._report(request)

    def _report(self, request: Running) -> None:
        heat = request.heat.ravel()
        hot = np.flatnonzero(heat)
        hot = hot[np.argsort(-heat[hot], kind="stable")][: self._rules.report_entries_max]
        groups, blocks = np.divmod(hot, request.needs.blocks)
        entries = zip(blocks.tolist(), groups.tolist(), heat[hot].tolist(), strict=True)
        number = request.number
        self.policy.reported(request.identity, [HeatEntry(number, *entry) for entry in entries], self.now_ns)
        request.heat[:] = 0

    def _fill(self, request: Running, block: int) -> None:
        """A block is full: it gets frames in DRAM, and is written to SSD once."""
        for group in range(len(request.present)):
            self.costs.writes += 1
            if self._take_frame():
                request.present[group, block] = True
                self.policy.granted(Place(request.identity, block, group), self.now_ns)

    # ------------------------------------------------------------ chunks

    def _prefill(self) -> None:
        """DRAM holds what the first steps select most, then the newest; and the policy is told of them."""
        first, hotness = self._rules.prefill_steps, []
        begin = min(each.needs.steps[first].due for each in self.requests)
        for request in self.requests:
            total = np.zeros(request.heat.shape)
            for step in request.needs.steps[:first]:
                for group, of_group in enumerate(step.groups):
                    total[group][of_group.selected] += of_group.counts
            request.done = first
            request.due = 1 + request.needs.steps[first].due - begin
            total[:, request.full_blocks :] = -1
            hotness.append((total + np.arange(request.needs.blocks) / request.needs.blocks).ravel())
        threshold = max(0, np.partition(np.concatenate(hotness), -self._free)[-self._free])
        for request, scores in zip(self.requests, hotness, strict=True):
            for spot in np.flatnonzero(scores >= threshold)[: self._free].tolist():
                group, block = divmod(spot, request.needs.blocks)
                self._free -= 1
                request.present[group, block] = True
                self.policy.granted(Place(request.identity, block, group), self.now_ns)
            for request.done in range(first):
                self._count(request)
            request.done = first

    def _land(self, place: Place) -> None:
        request, spot = self.requests[place.request], (place.block, place.chunk)
        request.coming[place.chunk, place.block] = False
        request.present[place.chunk, place.block] = True
        request.lacking.discard(spot)
        self.policy.granted(place, self.now_ns)

    def _read(self) -> None:
        """Begin reads while the link has time and somebody can go for them."""
        while (found := self._link.next(self.tick)) is not None:
            place, urgency = found
            request, at = self.requests[place.request], (place.chunk, place.block)
            if request.over or place.block >= request.full_blocks or request.present[at] or request.coming[at]:
                continue
            if not self._take_frame():
                if urgency is Urgency.DEMAND:
                    self._link.ask(place, urgency, self.tick)
                return
            request.coming[at] = True
            request.guessed[at] = urgency is not Urgency.DEMAND
            self.costs.reads[urgency] += 1
            self._link.begin(place, self.tick)

    def _take_frame(self) -> bool:
        """A frame for one chunk: a free one, or the coldest chunk's that no failing step waits for."""
        if self._free:
            self._free -= 1
            return True
        if not self._victims:
            coldest = (place for place in self.policy.coldest(self.now_ns) if not self._is_pinned(place))
            self._victims.extend(islice(coldest, VICTIMS_AT_ONCE))
        if not self._victims:
            return False
        place = self._victims.popleft()
        request, at = self.requests[place.request], (place.chunk, place.block)
        request.present[at] = False
        self.costs.guesses_wasted += int(request.guessed[at])
        request.guessed[at] = False
        self.policy.revoked(place)
        return True

    def _is_pinned(self, place: Place) -> bool:
        return (place.block, place.chunk) in self.requests[place.request].pinned
