"""A look at the daemon once a second, kept for a quarter of an hour: what a dashboard draws.

Owns the history, each sample encoded once. Everything in it is read off counters in well under a millisecond; a store
is never asked. `Daemon` runs it while the API is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import msgspec

from flexkvd.control.feed import Feed
from flexkvd.control.policies import guesses
from flexkvd.control.tiers import COPY_LINKS, COUNTED, Tiers
from flexkvd.durations import Durations, quantiles
from flexkvd.facts import tier_facts
from flexkvd.parts import Parts

PERIOD_S = 1.0
SAMPLES_MAX = 900
FAULTS_PER_SAMPLE_MAX = 8
LAG_WINDOW_MAX = 60
"""Samples over which the lag of the loop is looked at."""


class Sampler:
    """Takes samples while `run` runs."""

    def __init__(self, parts: Parts, tiers: Tiers, feed: Feed) -> None:
        self._parts = parts
        self._tiers = tiers
        self._feed = feed
        self._samples: deque[tuple[float, bytes]] = deque(maxlen=SAMPLES_MAX)
        self._faults_told = parts.faults.total
        self._lags: deque[list[int]] = deque(maxlen=LAG_WINDOW_MAX)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self.take()
            due_s = max(due_s + PERIOD_S, loop.time())  # after a long stall the missed ones are not made up for
            await asyncio.sleep(due_s - loop.time())

    def take(self) -> None:
        """Keep a sample and tell it to those who listen."""
        encoded = msgspec.json.encode(self.sample())
        self._samples.append((time.time(), encoded))
        self._feed.tell("sample", msgspec.Raw(encoded))
        self._tell_faults()

    def _tell_faults(self) -> None:
        """What went wrong since the last look, oldest first; of a burst the newest only."""
        faults = self._parts.faults
        new, self._faults_told = faults.total - self._faults_told, faults.total
        for fault in reversed(faults.recent(min(new, FAULTS_PER_SAMPLE_MAX))):
            self._feed.tell("fault", fault)

    def since(self, last_s: float) -> bytes:
        """The samples of the last so many seconds, oldest first, as the JSON list they are answered in."""
        oldest_s = time.time() - last_s
        return b"[%b]" % b",".join(encoded for taken_s, encoded in self._samples if taken_s >= oldest_s)

    def sample(self) -> dict[str, Any]:
        """The daemon now; see `api.shapes.Sample`."""
        parts, counters = self._parts, self._parts.planner.counters
        by_name: dict[str, dict[str, int]] = {"matched_keys": {}, "load_keys": {}, "save_keys": {}}
        for (name, label), count in counters.items():
            if name in by_name:
                by_name[name][label] = count
        matched = by_name["matched_keys"]
        return {
            "t": round(time.time(), 3),
            "tiers": self._tier_samples(),
            "matched": {"hit": matched.get("hit", 0), "miss": matched.get("miss", 0)},
            "links": self._link_samples(),
            "load_keys": by_name["load_keys"],
            "save_keys": by_name["save_keys"],
            "loop_lag_p99_s": self._lag_p99_s(),
            "sessions": parts.sessions.count,
            "tickets": len(parts.planner.state.tickets),
            "policy": guesses(parts.planner.state),
        }

    def _tier_samples(self) -> dict[str, dict[str, Any]]:
        parts, state = self._parts, self._parts.planner.state
        samples: dict[str, dict[str, Any]] = {"hbm": self._tiers.one("hbm")}
        for level in state.levels.values():
            samples[level.word] = {
                **tier_facts(state, level),
                "hits": parts.planner.counters.get((COUNTED[0], level.word), 0),
                "blocks": self._tiers.blocks_in(level),
            }
        wanted = ("used_bytes", "capacity_bytes", "up", "hits", "blocks")
        return {word: {name: facts[name] for name in wanted} for word, facts in samples.items()}

    def _link_samples(self) -> dict[str, dict[str, int]]:
        moved = self._parts.executor.traffic.bytes
        links = {name: {"bytes": moved[name], "running": 0, "waiting": 0} for name in COPY_LINKS}
        for link in self._parts.executor.links.values():
            links[link.name] = {"bytes": moved[link.name], "running": link.running, "waiting": link.waiting}
        return links

    def _lag_p99_s(self) -> float | None:
        counts = list(self._parts.lag.lag.counts)
        before = self._lags[0] if self._lags else [0] * len(counts)
        self._lags.append(counts)
        lately = Durations()
        lately.counts = [now - then for now, then in zip(counts, before, strict=True)]
        found = quantiles([lately])
        return None if found is None else found["p99"]
