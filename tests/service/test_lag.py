"""The loop's lag, measured on a real loop that is held up on purpose."""

import asyncio
import time

import uvloop

from flexkvd.durations import DURATION_BOUNDS_S
from flexkvd.lag import LagProbe


def test_a_loop_that_is_held_up_shows_it() -> None:
    """Of some measurements a second, one falls into the 0.3 s that a callback kept the loop for."""

    async def run() -> LagProbe:
        probe = LagProbe(asyncio.get_running_loop())
        await asyncio.sleep(0.25)
        time.sleep(0.3)  # noqa: ASYNC251 - this is the hold-up
        await asyncio.sleep(0.15)
        on_core_ns, queued_ns = probe.core_times()
        assert on_core_ns > 0
        assert queued_ns >= 0
        probe.close()
        return probe

    lag = uvloop.run(run()).lag
    late = [count for bound, count in zip(DURATION_BOUNDS_S, lag.counts, strict=False) if bound > 0.1]
    assert sum(late) >= 1
    assert sum(lag.counts) >= 3
    assert lag.total_s > 0.2
    assert lag.cumulative()[-1] == ("+Inf", sum(lag.counts))
