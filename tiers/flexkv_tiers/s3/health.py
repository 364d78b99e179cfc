"""When to ask, when to wait, when to try again, when to stop asking, and when to ask whether the bucket is back.

Five small machines, each pure: the store owns clock, chance and sleep, and passes the time in seconds of
one clock. `Health` puts three of them
together, one per store; `Silence` stands beside it.
"""

from __future__ import annotations

from enum import StrEnum

from flexkv_tiers.s3.faults import CONCLUSIVE, OUTAGES, SECOND_LOOK, WORTH_RETRYING
from flexkv_tiers.s3.messages import Trouble

OUTAGE_COUNT_MAX = 5
"""Outages in a row, over all operations, that open the breaker."""

PROBE_DELAY_S_MIN = 0.25
PROBE_DELAY_S_MAX = 10.0
RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 2.0
RETRY_TOKENS_MAX = 20.0
_TOKENS_PER_SUCCESS = 0.2

RATE_PER_S_MIN = 1.0
RATE_DECREASE = 0.5
RATE_INCREASE_PER_S = 0.05
"""Share of the rate at which throttling began that every second without throttling gives back."""
RATE_DECREASE_PAUSE_S = 1.0
"""Refusals within this time are one: they answer requests of one moment."""
URGENT_CREDIT_S = 1.0
"""How far a waiting read may run ahead of the rate; what it takes is missing to the others."""


SILENCE_FORGOTTEN = 0.01
"""Share of the longest silence of late that every answer takes off."""


class BreakerState(StrEnum):
    """CLOSED → OPEN → HALF_OPEN (a probe is under way) → CLOSED or OPEN again."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Closed: moves go. Otherwise none goes, and one probe at a time asks whether they could.

    While it is open `probe_at_s` says when the next probe is due, never further than PROBE_DELAY_S_MAX
    ahead: that is what keeps it from staying open.
    """

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.because = ""  # why it is not closed
        self.probe_at_s: float | None = None  # set exactly while it is open
        self.opened_count = 0
        self._outages = 0
        self._probe_delay_s = PROBE_DELAY_S_MIN

    def note_success(self) -> None:
        """A move got through, or an answer about one object showed that the bucket serves."""
        if self.state is BreakerState.CLOSED:
            self._outages = 0
            self._probe_delay_s = PROBE_DELAY_S_MIN

    def note_outage(self, why: str, now_s: float, *, hopeless: bool = False) -> None:
        """A move failed for want of the bucket. What was under way when it opened may still fail: no news."""
        if self.state is BreakerState.CLOSED:
            self._outages += 1
            if hopeless or self._outages >= OUTAGE_COUNT_MAX:
                self.open(why, now_s)

    def open(self, why: str, now_s: float) -> None:
        assert why
        assert self.state is BreakerState.CLOSED
        self.opened_count += 1
        self._wait_for_probe(why, now_s)

    def begin_probe(self, now_s: float) -> None:
        assert self.state is BreakerState.OPEN
        assert self.probe_at_s is not None
        assert self.probe_at_s <= now_s
        self.state, self.probe_at_s = BreakerState.HALF_OPEN, None

    def end_probe(self, failure: str, now_s: float) -> None:
        """The probe got through (`failure` is empty), or did not.

        After it got through one more outage opens again, and only a move resets the probe's pace.
        """
        assert self.state is BreakerState.HALF_OPEN
        if failure:
            self._wait_for_probe(failure, now_s)
            return
        self.state, self.because = BreakerState.CLOSED, ""
        self._outages = OUTAGE_COUNT_MAX - 1

    def _wait_for_probe(self, why: str, now_s: float) -> None:
        self.state, self.because = BreakerState.OPEN, why
        self.probe_at_s = now_s + self._probe_delay_s
        self._probe_delay_s = min(PROBE_DELAY_S_MAX, 2 * self._probe_delay_s)


class RetryBudget:
    """Retries of all operations together are paid for by successes: an ailing server is not asked twice as often."""

    def __init__(self, retry_count_max: int) -> None:
        self.tokens = RETRY_TOKENS_MAX
        self._retry_count_max = retry_count_max

    def note_success(self) -> None:
        self.tokens = min(RETRY_TOKENS_MAX, self.tokens + _TOKENS_PER_SUCCESS)

    def delay_s(self, retries: int, remaining_s: float, chance: float) -> float | None:
        """Pause before retry number `retries` + 1 of an operation, or None when it must fail now.

        Full jitter: `chance` in [0, 1) picks a point in a window that doubles with every retry.
        """
        if retries >= self._retry_count_max or self.tokens < 1:
            return None
        delay = chance * min(RETRY_DELAY_S_MAX, RETRY_DELAY_S_MIN * 2.0 ** min(retries, 16))
        if delay >= remaining_s:
            return None
        self.tokens -= 1
        return delay


class Throttle:
    """Requests per second, once the server has asked for fewer: additive increase, multiplicative decrease.

    Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance" (1989),
    over requests instead of packets. Without refusals there is no limit at all.
    """

    def __init__(self) -> None:
        self.rate_per_s: float | None = None  # None: no limit
        self._began_per_s = 0.0  # the rate at which the server began to refuse
        self._decreased_s = 0.0
        self._increased_s = 0.0
        self._free_s = 0.0  # when the next request may go
        self._second = 0.0  # the second now being counted
        self._counts = (0, 0)  # requests in the second before, and in this one

    def delay_s(self, now_s: float, remaining_s: float, *, urgent: bool = False) -> float | None:
        """Pause before the next request; None, and nothing is taken, when its time is over by then."""
        self._count(now_s)
        if self.rate_per_s is None:
            return 0.0
        delay = max(0.0, self._free_s - now_s - (URGENT_CREDIT_S if urgent else 0.0))
        if delay >= remaining_s:
            return None
        self._free_s = max(self._free_s, now_s) + 1.0 / self.rate_per_s
        return delay

    def note_refusal(self, now_s: float) -> None:
        """The server asked for fewer requests."""
        if self.rate_per_s is None:
            self._began_per_s = max(RATE_PER_S_MIN, *map(float, self._counts))
            self.rate_per_s = self._began_per_s
        elif now_s - self._decreased_s < RATE_DECREASE_PAUSE_S:
            return
        self.rate_per_s = max(RATE_PER_S_MIN, RATE_DECREASE * self.rate_per_s)
        self._decreased_s = self._increased_s = now_s
        self._free_s = max(self._free_s, now_s)

    def note_success(self, now_s: float) -> None:
        if self.rate_per_s is not None and now_s > self._increased_s:
            self.rate_per_s += RATE_INCREASE_PER_S * self._began_per_s * (now_s - self._increased_s)
            self._increased_s = now_s
            if self.rate_per_s >= 2 * self._began_per_s:  # what it refused once it has been taking twice over
                self.rate_per_s = None

    def _count(self, now_s: float) -> None:
        if now_s - self._second >= 1.0:
            self._counts = (self._counts[1] if now_s - self._second < 2.0 else 0, 0)
            self._second = now_s
        self._counts = (self._counts[0], self._counts[1] + 1)


class Silence:
    """How long nothing that was asked has been answered, and from when on that is odd.

    One request that takes long and a server that is gone look alike; a server that answers none of several
    does not. What is odd depends on the server: twice the longest silence that an answer ended, of late, within
    limits.
    """

    def __init__(self, limit_s_min: float, limit_s_max: float) -> None:
        self.since_s = 0.0  # the last answer, or the first request after a pause
        self._running = 0
        self._longest_s = 0.0
        self._limits = (limit_s_min, max(limit_s_min, limit_s_max))

    def begin(self, now_s: float) -> None:
        """Something more was asked."""
        if not self._running:
            self.since_s = now_s
        self._running += 1

    def end(self) -> None:
        """One of them has ended, answered or not."""
        assert self._running > 0
        self._running -= 1

    def hear(self, now_s: float, *, late: bool = False) -> None:
        """The server said something; `late`: how long that took was not its own doing."""
        if not late:
            self._longest_s = max(now_s - self.since_s, (1 - SILENCE_FORGOTTEN) * self._longest_s)
        self.since_s = now_s

    @property
    def limit_s(self) -> float:
        low, high = self._limits
        return min(high, max(low, 2 * self._longest_s))

    @property
    def odd_at_s(self) -> float | None:
        """From when on the silence that is now is odd; None while nothing is asked."""
        return self.since_s + self.limit_s if self._running else None


class Health:
    """How the bucket has been answering lately, and what that means for the next request."""

    def __init__(self, retry_count_max: int) -> None:
        self.breaker = Breaker()
        self.budget = RetryBudget(retry_count_max)
        self.throttle = Throttle()

    @property
    def up(self) -> bool:
        return self.breaker.state is BreakerState.CLOSED

    @property
    def down_because(self) -> str:
        return self.breaker.because

    def succeeded(self, now_s: float) -> None:
        self.breaker.note_success()
        self.budget.note_success()
        self.throttle.note_success(now_s)

    def failed(self, trouble: Trouble, why: str, now_s: float) -> None:
        """An attempt failed; opens the breaker when that is one outage too many."""
        if trouble not in OUTAGES:
            self.succeeded(now_s)
            return
        if trouble is Trouble.THROTTLED:
            self.throttle.note_refusal(now_s)
        self.breaker.note_outage(why, now_s, hopeless=trouble in CONCLUSIVE)

    def retry_delay_s(self, trouble: Trouble, retries: int, remaining_s: float, chance: float) -> float | None:
        """Pause before another attempt at an operation that met `trouble`, or None when it must fail now."""
        worth = trouble in WORTH_RETRYING or (trouble in SECOND_LOOK and retries == 0)
        if not self.up or not worth:
            return None
        return self.budget.delay_s(retries, remaining_s, chance)

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {
            "up": self.up,
            "down_because": self.down_because,
            "breaker": self.breaker.state.value,
            "breaker_opened": self.breaker.opened_count,
            "retry_tokens": round(self.budget.tokens, 1),
            "rate_per_s_max": round(self.throttle.rate_per_s or 0.0, 1),
        }
