"""A bucket that fails, throttles and comes back, and the real `Health` of the S3 tier, in virtual time.

Oracle: while it is open somebody will ask again, soon; no move goes meanwhile; retries are paid for by successes;
throttled, the rate stays within bounds; and once the bucket is well, everything goes again in bounded time.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from xxhash import xxh3_128

from flexkv_tiers.s3.faults import OUTAGES
from flexkv_tiers.s3.health import (
    PROBE_DELAY_S_MAX,
    RATE_PER_S_MIN,
    RETRY_DELAY_S_MAX,
    RETRY_TOKENS_MAX,
    Breaker,
    BreakerState,
    Health,
    Throttle,
)
from flexkv_tiers.s3.messages import Trouble
from tests.sim.plant import Plant, planter
from tests.sim.simulation import Report, SimulationFailed
from tests.sim.violation import Violation

PLANTS: dict[str, Plant] = {}
_plant = planter(PLANTS)

TIMEOUT_S = 30.0
MOODS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.9)
"""How often each trouble may come; mostly not at all, because one that opens the breaker hides all others."""
CALM_S = 3600.0
"""Well for so long, a bucket is served without any limit again."""
CALM_STEP_S = 0.25
RETRY_SHARE_MAX = 0.2
"""Beyond the first few, at most so many retries for each success."""


class Bucket:
    """A client of a bucket whose mood changes every now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"s3-health {seed}")
        self.health = Health(retry_count_max=self.chance.choice((0, 3, 30)))
        self.now_s = 0.0
        self.digest = xxh3_128()
        self.mood = dict.fromkeys(Trouble, 0.0)
        self._retries = 0
        self._successes = 0

    def step(self) -> None:
        """A moment later: perhaps another mood, perhaps a probe, perhaps a move."""
        chance = self.chance
        self.now_s += chance.expovariate(20)
        if chance.random() < 0.02:
            self.mood = {trouble: chance.choice(MOODS) for trouble in Trouble}
        self._probe()
        if self.health.up:
            self._move()
        self._check()
        self.digest.update(f"{self.now_s:.6f} {self.health.status()}".encode())

    def calm_down(self) -> None:
        """The bucket is well: in bounded time every move goes again, without a limit."""
        self.mood = {}
        until_s = self.now_s + CALM_S
        while self.now_s < until_s:
            self.now_s += CALM_STEP_S
            self._probe()
            if self.health.up:
                self._move()
            self._check()
        if not self.health.up:
            raise Violation(f"well for {CALM_S} s, and the breaker is still {self.health.breaker.state}")
        if self.health.throttle.rate_per_s is not None:
            raise Violation(f"well for {CALM_S} s, and still limited to {self.health.throttle.rate_per_s} per second")

    def _trouble(self) -> Trouble | None:
        return next((trouble for trouble, rate in self.mood.items() if self.chance.random() < rate), None)

    def _probe(self) -> None:
        breaker = self.health.breaker
        if breaker.probe_at_s is not None and breaker.probe_at_s <= self.now_s:
            breaker.begin_probe(self.now_s)
            breaker.end_probe("still away" if self._trouble() is not None else "", self.now_s)

    def _move(self) -> None:
        """One operation with its retries; each waits as it is told to."""
        retries, deadline_s = 0, self.now_s + TIMEOUT_S
        while True:
            delay_s = self.health.throttle.delay_s(self.now_s, deadline_s - self.now_s)
            if delay_s is None:
                return
            self.now_s += delay_s
            trouble = self._trouble()
            if trouble is None:
                self._successes += 1
                self.health.succeeded(self.now_s)
                return
            self._successes += trouble not in OUTAGES  # an answer about one object shows that the bucket serves
            self.health.failed(trouble, "it said so", self.now_s)
            pause_s = self.health.retry_delay_s(trouble, retries, deadline_s - self.now_s, self.chance.random())
            if pause_s is None:
                return
            if not 0 <= pause_s <= RETRY_DELAY_S_MAX:
                raise Violation(f"a retry waits {pause_s} s")
            retries += 1
            self._retries += 1
            self.now_s += pause_s

    def _check(self) -> None:
        breaker, rate_per_s = self.health.breaker, self.health.throttle.rate_per_s
        if breaker.state is BreakerState.OPEN and breaker.probe_at_s is None:
            raise Violation("the breaker is open, and nobody will ever ask whether the bucket is back")
        if breaker.probe_at_s is not None and breaker.probe_at_s > self.now_s + PROBE_DELAY_S_MAX:
            raise Violation(f"the next probe is due in {breaker.probe_at_s - self.now_s} s")
        if rate_per_s is not None and rate_per_s < RATE_PER_S_MIN:
            raise Violation(f"throttled to {rate_per_s} requests per second")
        if self._retries > RETRY_TOKENS_MAX + RETRY_SHARE_MAX * self._successes:
            raise Violation(f"{self._retries} retries after {self._successes} successes")


def run(seed: int, steps: int, plant: str = "") -> Report:
    """Run one seed. Raises SimulationFailed at the first broken promise."""
    bucket, step = Bucket(seed), 0
    try:
        for step in range(1, steps + 1):  # noqa: B007 - the failure tells it
            bucket.step()
        bucket.calm_down()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        command = f"scripts/simulate --world s3-health --seed {seed} --steps {steps}"
        raise SimulationFailed(
            f"replay with: {command}{f' --plant {plant}' if plant else ''}\n"
            f"step {step}, {bucket.now_s:.3f} s: {type(error).__name__}: {error}\n"
            f"at {where.filename.rpartition('/')[2]}:{where.lineno} in {where.name}: {where.line}\n"
            f"health: {bucket.health.status()}"
        ) from error
    return Report(seed, steps, bucket.digest.hexdigest(), {})


@_plant("a probe that fails plans no other", (Breaker, "end_probe"))
def _s3_breaker_stuck(right: Any) -> Any:
    def end_probe(self: Breaker, failure: str, now_s: float) -> None:
        right(self, failure, now_s)
        if failure:
            self.probe_at_s = None

    return end_probe


@_plant("a rate that was lowered is never raised", (Throttle, "note_success"))
def _s3_throttled_for_ever(_: Any) -> Any:
    def note_success(_self: Throttle, _now_s: float) -> None:
        return

    return note_success
