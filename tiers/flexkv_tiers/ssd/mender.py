"""What goes on while a disk ails: asking again for what it owes, and whether it takes writes again.

One task that runs only while there is something to ask for, at growing intervals. `SsdStore` makes it;
the stripes wake it. What a directory's failing means for writes is `health`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from flexkv_py.core.messages import Fault
from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.ssd.health import Health
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.owed import WHOLE, Owed
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.stripe import Stripe

_log = logging.getLogger(__name__)

RETRY_S_MIN, RETRY_S_MAX = 0.05, 10.0
CLOSE_ATTEMPTS_MAX = 3
"""After so many a disk that would not say at the end what is dead loses the segment's file instead."""


class Mender:
    """`failed` hears of every fault, `mended` of directories whose segments may be free now."""

    def __init__(
        self,
        log: Log,
        stripes: Sequence[Stripe],
        owed: Owed,
        health: Health,
        failed: Callable[[TierFault], None],
        mended: Callable[[int], None],
    ) -> None:
        self._log = log
        self._stripes = stripes
        self._owed = owed
        self._health = health
        self._failed = failed
        self._mended = mended
        self._closing = asyncio.Event()
        self._asking = False
        self._background = Background("the SSD tier")

    def wake(self) -> None:
        """There is something to ask for."""
        if not self._asking and not self._closing.is_set():
            self._asking = True
            self._background.spawn(self._run())

    async def close(self) -> None:
        """Ask a last few times, then remove the segments that still owe: their records must not come back."""
        self._closing.set()
        await self._background.settled()
        for _ in range(CLOSE_ATTEMPTS_MAX):
            await self._ask_all()
        for segment in self._owed.segments:
            try:
                await self._stripes[segment.disk].discard(segment)
                where = self._stripes[segment.disk].directory
                _log.warning(
                    "%s: segment %06d is removed: the disk did not take what is dead in it", where, segment.number
                )
            except TierFault as fault:
                self._failed(fault)

    async def _run(self) -> None:
        pause_s = RETRY_S_MIN
        while (self._owed.segments or self._health.down) and not await self._closed_within(pause_s):
            pause_s = min(2 * pause_s, RETRY_S_MAX)
            await self._ask_all()
            if self._health.down:
                await self._probe_all()
        self._asking = False

    async def _closed_within(self, pause_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), pause_s)
        return self._closing.is_set()

    async def _ask_all(self) -> None:
        for segment in self._owed.segments:
            try:
                await self._ask(segment)
            except TierFault as fault:
                self._failed(fault)

    async def _ask(self, segment: Segment) -> None:
        """Have a segment's maps say what is dead in it, or its header that it holds nothing. Raises TierFault."""
        stripe = self._stripes[segment.disk]
        if WHOLE not in segment.owed and segment.state is not SegmentState.FREE:
            await stripe.kill(segment, *segment.owed)
            return
        assert self._log.layout is not None
        await stripe.clear(segment, self._log.layout)
        self._log.mended(segment)
        self._mended(segment.disk)

    async def _probe_all(self) -> None:
        for number, stripe in enumerate(self._stripes):
            try:
                await stripe.probe()
            except TierFault as fault:
                self._failed(fault)
                if fault.fault is not Fault.FULL:
                    continue
            self._health.wrote(number)
