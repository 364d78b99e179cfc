"""Breaker, retry budget and throttle of the S3 tier: pure, under a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_tiers.s3.health import (
    OUTAGE_COUNT_MAX,
    PROBE_DELAY_S_MAX,
    PROBE_DELAY_S_MIN,
    RATE_PER_S_MIN,
    RETRY_DELAY_S_MAX,
    RETRY_TOKENS_MAX,
    Breaker,
    BreakerState,
    Health,
    RetryBudget,
    Throttle,
)
from flexkv_tiers.s3.messages import Trouble


def open_breaker(kind=Breaker):
    breaker = kind()
    breaker.note_outage("away", 0.0, hopeless=True)
    return breaker


def probe(breaker, failure, now_s):
    breaker.begin_probe(now_s)
    assert breaker.state is BreakerState.HALF_OPEN
    breaker.end_probe(failure, now_s)


def test_the_breaker_opens_after_a_row_of_outages_and_on_hopeless_ones():
    """A row of timeouts opens it, an answer in between starts the row anew, a denial opens it at once."""
    health = Health(retry_count_max=3)
    for _ in range(OUTAGE_COUNT_MAX - 1):
        health.failed(Trouble.TIMEOUT, "slow", 0.0)
    health.failed(Trouble.MISSING, "an answer all the same", 0.0)
    for _ in range(OUTAGE_COUNT_MAX - 1):
        health.failed(Trouble.TIMEOUT, "slow", 0.0)
    assert health.up
    health.failed(Trouble.TIMEOUT, "slow", 0.0)
    assert health.down_because == "slow"
    probe(health.breaker, "", 1.0)
    assert health.up
    health.failed(Trouble.CUT, "again", 2.0)
    assert not health.up, "after a probe one outage is enough"
    assert health.status()["breaker_opened"] == 2
    for trouble in (Trouble.DENIED, Trouble.EXPIRED, Trouble.SKEWED, Trouble.REGION, Trouble.BUCKET_MISSING):
        other = Health(retry_count_max=3)
        other.failed(trouble, "no rights", 0.0)
        assert not other.up


def test_probes_slow_down_until_a_move_succeeds():
    """Probe delays double to their limit and stay there when the breaker flaps; a success resets them."""
    breaker, now_s, delays = open_breaker(), 0.0, []
    for _ in range(10):
        delays.append(breaker.probe_at_s - now_s)
        now_s = breaker.probe_at_s
        probe(breaker, "still away", now_s)
    assert delays[:2] == [PROBE_DELAY_S_MIN, 2 * PROBE_DELAY_S_MIN]
    assert delays[-1] == PROBE_DELAY_S_MAX
    probe(breaker, "", breaker.probe_at_s)
    breaker.note_outage("again", now_s)
    assert breaker.probe_at_s - now_s == PROBE_DELAY_S_MAX
    probe(breaker, "", breaker.probe_at_s)
    breaker.note_success()
    breaker.note_outage("again", now_s, hopeless=True)
    assert breaker.probe_at_s - now_s == PROBE_DELAY_S_MIN


class StuckBreaker(Breaker):
    """A planted bug: a probe that fails plans no other."""

    def end_probe(self, failure: str, now_s: float) -> None:
        super().end_probe(failure, now_s)
        self.probe_at_s = None


def live(breaker: Breaker, troubles: list[tuple[float, bool]]) -> None:
    """Moves and probes under outages that come and go; then the bucket is well, and it must close in time."""
    now_s = 0.0
    for pause_s, well in [*troubles, (2 * PROBE_DELAY_S_MAX, True), (0.0, True)]:
        end_s = now_s + pause_s
        while breaker.state is BreakerState.OPEN:
            assert breaker.probe_at_s is not None, "it is open, and nobody will ever ask whether the bucket is back"
            assert breaker.probe_at_s <= now_s + PROBE_DELAY_S_MAX
            if breaker.probe_at_s > end_s:
                break
            now_s = max(now_s, breaker.probe_at_s)
            probe(breaker, "" if well else "still away", now_s)
        now_s = end_s
        if breaker.state is BreakerState.CLOSED:
            for _ in range(OUTAGE_COUNT_MAX):
                breaker.note_success() if well else breaker.note_outage("away", now_s)
        assert (breaker.probe_at_s is None) == (breaker.state is not BreakerState.OPEN)
    assert breaker.state is BreakerState.CLOSED


TROUBLES = st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=30)


@given(TROUBLES)
def test_the_breaker_always_closes_again(troubles):
    """Whatever happened before: once the bucket is well, it is closed within the longest probe delay."""
    live(Breaker(), troubles)


def test_a_stuck_breaker_would_be_caught():
    """The property above fails on a breaker that forgets to probe again."""
    with pytest.raises(AssertionError, match="nobody will ever ask"):
        live(StuckBreaker(), [(0.0, False), (1.0, False), (30.0, True)])


def test_news_from_before_it_opened_changes_nothing():
    """While it is open, what was under way may succeed or fail: only a probe closes it."""
    breaker = open_breaker()
    due_s = breaker.probe_at_s
    breaker.note_success()
    breaker.note_outage("late", 0.1, hopeless=True)
    assert (breaker.state, breaker.probe_at_s, breaker.opened_count) == (BreakerState.OPEN, due_s, 1)
    with pytest.raises(AssertionError):
        breaker.begin_probe(due_s - 0.1)


def test_retries_are_bounded_in_number_time_and_budget():
    """No retry beyond the count, beyond the deadline, for an answer that will not change, or without budget."""
    health = Health(retry_count_max=3)
    assert health.retry_delay_s(Trouble.THROTTLED, 0, 10.0, 0.5) is not None
    assert health.retry_delay_s(Trouble.THROTTLED, 3, 10.0, 0.5) is None
    assert health.retry_delay_s(Trouble.THROTTLED, 2, 0.01, 0.9) is None
    assert health.retry_delay_s(Trouble.MISSING, 0, 10.0, 0.5) is None
    assert health.retry_delay_s(Trouble.CORRUPT, 0, 10.0, 0.0) == 0.0, "perhaps it was spoilt on its way"
    assert health.retry_delay_s(Trouble.CORRUPT, 1, 10.0, 0.0) is None
    delays = [health.retry_delay_s(Trouble.SERVER, 0, 10.0, 0.99) for _ in range(100)]
    assert sum(delay is not None for delay in delays) == RETRY_TOKENS_MAX - 2
    for _ in range(10):
        health.succeeded(0.0)
    assert health.retry_delay_s(Trouble.SERVER, 0, 10.0, 0.0) == 0.0
    assert RetryBudget(1000).delay_s(999, 10.0, 0.99) <= RETRY_DELAY_S_MAX


def sent(throttle, seconds, refused_above, *, start_s, asks_per_s=200):
    """Requests that went in each second of a server that refuses more than so many a second."""
    now_s, counts, refusals = start_s, [0] * seconds, 0
    while now_s < start_s + seconds:
        delay = throttle.delay_s(now_s, 1000.0)
        now_s += max(delay, 1.0 / asks_per_s)
        second = int(now_s - start_s)
        if second < seconds:
            counts[second] += 1
            if counts[second] > refused_above:
                throttle.note_refusal(now_s)
                refusals += 1
            else:
                throttle.note_success(now_s)
    return counts, refusals


def test_the_rate_follows_what_the_server_takes():
    """Without refusals no limit; with them it comes down to what the server takes, and afterwards it goes again."""
    throttle = Throttle()
    counts, refusals = sent(throttle, 3, 10_000, start_s=0.0)
    assert (min(counts) > 190, refusals, throttle.rate_per_s) == (True, 0, None)
    counts, refusals = sent(throttle, 60, 40, start_s=3.0)
    assert refusals < 0.25 * sum(counts)
    assert 20 <= sum(counts[10:]) / 50 <= 60
    sent(throttle, 60, 10_000, start_s=63.0)
    assert throttle.rate_per_s is None


def test_one_storm_is_one_decrease():
    """A hundred refusals of one moment halve the rate once; it never falls below its least."""
    throttle = Throttle()
    for _ in range(100):
        throttle.delay_s(0.5, 10.0)
    for _ in range(100):
        throttle.note_refusal(0.6)
    assert throttle.rate_per_s == 50.0
    for second in range(2, 100):
        throttle.note_refusal(float(second))
    assert throttle.rate_per_s == RATE_PER_S_MIN


def test_reads_go_before_the_rest_when_the_rate_is_limited():
    """A waiting read runs ahead of the rate by up to a second; what cannot go in time is told at once."""
    throttle = Throttle()
    throttle.note_refusal(0.0)
    assert throttle.rate_per_s == RATE_PER_S_MIN
    assert throttle.delay_s(0.0, 10.0) == 0.0
    assert throttle.delay_s(0.0, 10.0, urgent=True) == 0.0
    assert throttle.delay_s(0.0, 10.0) == 2.0
    assert throttle.delay_s(0.0, 2.5) is None
    assert throttle.delay_s(0.0, 2.5, urgent=True) == 2.0, "what had no time took nothing"
