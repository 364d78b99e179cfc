"""When to try again, when to stop asking, and when to ask whether the bucket is back.

One `Health` per store: a breaker (open after a row of outages, closed by a probe) and a retry budget
(retries are paid for by successes, so an ailing server is not asked twice as often). Pure: the store
owns clock, chance and sleep.
"""

from __future__ import annotations

from flexkv_tiers.s3.faults import HOPELESS, OUTAGES, WORTH_RETRYING
from flexkv_tiers.s3.messages import Trouble

OUTAGE_COUNT_MAX = 5
"""Outages in a row, over all operations, that open the breaker."""

PROBE_DELAY_S_MIN = 0.25
PROBE_DELAY_S_MAX = 10.0
RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 2.0
RETRY_TOKENS_MAX = 20.0
_TOKENS_PER_SUCCESS = 0.2


class Health:
    """How the bucket has been answering lately."""

    def __init__(self, retry_count_max: int) -> None:
        self.down_because = ""  # why the breaker is open; empty: it is closed
        self._retry_count_max = retry_count_max
        self._outages = 0
        self._probe_delay_s = PROBE_DELAY_S_MIN
        self._tokens = RETRY_TOKENS_MAX

    @property
    def up(self) -> bool:
        return not self.down_because

    def succeeded(self) -> None:
        """A move got through, or an answer about one object showed that the bucket serves."""
        self._outages = 0
        self._probe_delay_s = PROBE_DELAY_S_MIN
        self._tokens = min(RETRY_TOKENS_MAX, self._tokens + _TOKENS_PER_SUCCESS)

    def failed(self, trouble: Trouble, why: str) -> None:
        """An attempt failed; opens the breaker when that is one outage too many."""
        if trouble not in OUTAGES:
            self.succeeded()
            return
        self._outages += 1
        if trouble in HOPELESS or self._outages >= OUTAGE_COUNT_MAX:
            self.open(why)

    def open(self, why: str) -> None:
        assert why
        self.down_because = self.down_because or why

    def close(self) -> None:
        """A probe got through. One more outage opens again, and only a move resets the probe's pace."""
        self.down_because = ""
        self._outages = OUTAGE_COUNT_MAX - 1

    def probe_delay_s(self) -> float:
        """Pause before the next probe; each is twice the one before, up to a limit."""
        delay, self._probe_delay_s = self._probe_delay_s, min(PROBE_DELAY_S_MAX, 2 * self._probe_delay_s)
        return delay

    def retry_delay_s(self, trouble: Trouble, retries: int, remaining_s: float, chance: float) -> float | None:
        """Pause before retry number `retries` + 1 of a move, or None when it must fail now.

        Full jitter: `chance` in [0, 1) picks a point in a window that doubles with every retry.
        """
        if not self.up or trouble not in WORTH_RETRYING or retries >= self._retry_count_max or self._tokens < 1:
            return None
        delay = chance * min(RETRY_DELAY_S_MAX, RETRY_DELAY_S_MIN * 2.0 ** min(retries, 16))
        if delay >= remaining_s:
            return None
        self._tokens -= 1
        return delay
