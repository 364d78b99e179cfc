"""Thousands of steps in which requests come, grow, are cancelled and preempted while pages come and go.

Every row of every step is compared with its text, and every account is recounted as the run goes and at
its end, when nothing may be left anywhere.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flexkv_tiers.hbm.newest import SaveOutcome
from flexkv_tiers.hbm.replay import StepState
from flexkv_tiers.hbm.rooms import Admission, Stage
from tests.hbm.decoder import BLOCK_TOKENS, Decoder, select_some

TEXTS = 5
CHECK_STEPS = 25


class Turnover:
    """One seeded run. `seen` counts what happened, so that a run that shows nothing fails."""

    def __init__(self, seed: int, **sizes: int) -> None:
        self.chance = random.Random(seed)
        self.decoder = Decoder(requests=3, pages=20, frames=40, blocks=14, replays_max=3, **sizes)
        self.tokens_max = 14 * BLOCK_TOKENS - 8
        self.asked: list[tuple[int, tuple[int, int]]] = []
        self.next_request = 1
        self.seen: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.arrivals()
            self.daemon()
            self.decode()
            self.departures()
            if step % CHECK_STEPS == 0:
                self.decoder.check()
        self.end()

    def arrivals(self) -> None:
        if self.chance.random() < 0.2:
            text = self.chance.randrange(TEXTS)
            if text in self.decoder.texts.values() or any(text == saving for _, saving in self.decoder.saves):
                return  # two requests of one text write the same rows; the store keeps only one copy apart
            tokens = self.chance.randint(1, self.tokens_max - 30)
            admission = self.decoder.attach(self.next_request, text, tokens)
            self.seen[f"admitted {admission.value}"] += 1
            self.next_request += admission is not Admission.WAIT

    def daemon(self) -> None:
        decoder, chance = self.decoder, self.chance
        decoder.start_saves()
        if decoder.saves and chance.random() < 0.4:
            outcomes = [SaveOutcome.STORED] * 8 + [SaveOutcome.THROTTLED, SaveOutcome.REFUSED]
            decoder.end_save(chance.randrange(len(decoder.saves)), chance.choice(outcomes))
        if decoder.loads and chance.random() < 0.5:
            at = chance.randrange(len(decoder.loads))
            room = decoder.path.pool.rooms.get(decoder.loads[at][0])
            may_fail = room is not None and room.stage is Stage.WIDENING  # else the rows would be computed again
            decoder.end_load(at, whole=not may_fail or chance.random() < 0.6)
        self.asked += decoder.path.take_asks()
        for request in list(decoder.texts):
            if chance.random() < 0.4:
                self._change_pages(request)
        if chance.random() < 0.2:
            before = self.hot_pages()
            self.seen["widening"] += decoder.steer() is not None
            self.seen["resized"] += self.hot_pages() != before
        if chance.random() < 0.7:
            decoder.acknowledge()
        if chance.random() < 0.05:
            decoder.path.take_heat()

    def decode(self) -> None:
        decoder = self.decoder
        wanted = [request for request in decoder.texts if decoder.lengths[request] < self.tokens_max]
        wanted = [request for request in wanted if self.chance.random() < 0.9]
        self.chance.shuffle(wanted)
        if self.chance.random() < 0.02:
            self.seen["broken off"] += decoder.break_off(wanted, select_some(self.chance))
        queries = decoder.shapes[0].limits.queries
        outcomes = decoder.step(wanted, select_some(self.chance), lambda _: self.chance.randint(1, queries))
        self.seen.update(outcome.value for outcome in outcomes)
        self.seen["hot"] += sum(room.stage is Stage.HOT for room in decoder.path.pool.rooms.values())

    def departures(self) -> None:
        for request in list(self.decoder.texts):
            given_up = self.decoder.path._attached[request].replays.state is StepState.GIVEN_UP
            handed_back = given_up and self.decoder.path.pool.rooms[request].stage is not Stage.LOADING
            full = self.decoder.lengths[request] >= self.tokens_max
            if handed_back or full or self.chance.random() < 0.02:
                save = full or self.chance.random() < 0.5
                self.decoder.detach(request, save=save)
                self.seen["finished" if save else "cancelled"] += 1

    def hot_pages(self) -> list[int]:
        return [len(room.hot) for room in self.decoder.path.pool.rooms.values()]

    def end(self) -> None:
        """Everything ends; then every page, row and frame must be free."""
        decoder = self.decoder
        for request in list(decoder.texts):
            decoder.detach(request, save=True)
        while decoder.saves:
            decoder.end_save(0, SaveOutcome.STORED)
        while decoder.loads:
            decoder.end_load(0)
        decoder.check()
        assert decoder.path.pool.pages.free_count == decoder.path.pool.pages.count
        assert len(decoder.store.free) == 40
        assert not decoder.path.tables.requests.ok.any()

    def _change_pages(self, request: int) -> None:
        """What was asked for comes in first; at times cold pages leave, even what was asked for and not read yet."""
        decoder, chance = self.decoder, self.chance
        wanted = [part for owner, part in self.asked if owner == request]
        self.asked = [ask for ask in self.asked if ask[0] != request]
        held = list(decoder.store.grants[request].frames)
        revoked = chance.sample(held, min(len(held), chance.choice((0, 0, 1, 4))))
        blocks = decoder.path._attached[request].newest.full_blocks
        extra = [(chance.randrange(blocks), chance.randrange(2)) for _ in range(4)] if blocks else []
        change = decoder.store.grant(request, [*wanted, *extra], revoked)
        came = {(block, chunk) for block, chunk, _ in change.granted}
        decoder.path.apply(change)
        self.asked += [(request, part) for part in wanted if part not in came]  # no frame was free


EXPECTED = [
    "admitted resident",
    "admitted hot",
    "admitted wait",
    "hot",
    "broken off",
    "finished",
    "cancelled",
    "replay",
]


KINDS = {
    "tokens": {},
    "speculation": {"queries": 4, "slots": 24, "selected": 3},
    "compressed": {"per_id": 4, "queries": 2, "slots": 8, "selected": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_turnover(kind):
    """Every row right and every account exact, for tokens, speculation, and compressed tokens."""
    turnover = Turnover(1, **KINDS[kind])
    turnover.run(200)
    assert [name for name in EXPECTED if not turnover.seen[name]] == [], turnover.seen


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_long_turnover(kind):
    """The same for 10,000 steps, in which requests are also given up: made resident, or handed back."""
    turnover = Turnover(11, **KINDS[kind])
    turnover.run(10_000)
    more = ["widening", "resized", "load", "hand_back"]
    assert [name for name in [*EXPECTED, *more] if not turnover.seen[name]] == [], turnover.seen
