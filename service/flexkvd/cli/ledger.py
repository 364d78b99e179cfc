"""What a replay itself saw happen, and whether the daemon's metrics say the same.

Every count here is made from replies to this run's own requests. The comparison holds only while no
other client uses the daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from flexkv_py.core.messages import Outcome, Tier
from flexkvd.cli.admin import Samples, value

WRONG_KEPT_MAX = 100
_COPIED_OR_NOT = {Outcome.LOADED, Outcome.STORED, Outcome.PRESENT, Outcome.MISS, Outcome.THROTTLED}
"""Outcomes that say for certain whether a block's bytes crossed the link; others may end half-way."""


@dataclass(slots=True)
class Ledger:
    """Counts in blocks; latencies in seconds, one per request that had such a step."""

    requests: int = 0
    blocks: int = 0
    matched: int = 0
    hits: Counter[Tier] = field(default_factory=Counter)
    """Blocks loaded with all their bytes right, by the tier they were taken from."""
    loads: Counter[Outcome] = field(default_factory=Counter)
    saves: Counter[Outcome] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """The first blocks that came back with wrong bytes."""
    wrong_count: int = 0
    match_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)

    def add(self, other: Ledger) -> None:
        """Take over what another client of the same run counted."""
        self.requests += other.requests
        self.blocks += other.blocks
        self.matched += other.matched
        self.hits.update(other.hits)
        self.loads.update(other.loads)
        self.saves.update(other.saves)
        self.wrong = (self.wrong + other.wrong)[:WRONG_KEPT_MAX]
        self.wrong_count += other.wrong_count
        self.match_s += other.match_s
        self.load_s += other.load_s
        self.save_s += other.save_s

    def found_wrong(self, block_id: int, tier: Tier) -> None:
        self.wrong_count += 1
        if len(self.wrong) < WRONG_KEPT_MAX:
            self.wrong.append(f"block {block_id} from {tier.name.lower()}")

    def differences(self, before: Samples, after: Samples, block_bytes: int) -> list[str]:
        """Where the daemon counted otherwise than this run, in words; empty when both agree."""
        found = []
        for name, labels, own in self._as_metrics(block_bytes):
            theirs = value(after, name, **labels) - value(before, name, **labels)
            if theirs != own:
                found.append(f"{name} {' '.join(labels.values())}: the daemon counted {theirs:,.0f}, this run {own:,}")
        return found

    def _as_metrics(self, block_bytes: int) -> Iterator[tuple[str, dict[str, str], int]]:
        """The same counts under the daemon's names."""
        yield "flexkv_matched_keys_total", {"result": "hit"}, self.matched
        yield "flexkv_matched_keys_total", {"result": "miss"}, self.blocks - self.matched
        for tier in (Tier.DRAM, Tier.SSD, Tier.S3):
            yield "flexkv_hits_total", {"tier": tier.name.lower()}, self.hits[tier]
        for outcome in Outcome:
            yield "flexkv_load_keys_total", {"outcome": outcome.value}, self.loads[outcome]
            yield "flexkv_save_keys_total", {"outcome": outcome.value}, self.saves[outcome]
        if self.loads.keys() <= _COPIED_OR_NOT and self.saves.keys() <= _COPIED_OR_NOT:
            links = {"dram_worker": self.loads[Outcome.LOADED], "worker_dram": self.saves[Outcome.STORED]}
            for link, blocks in links.items():
                yield "flexkv_link_bytes_total", {"link": link}, blocks * block_bytes
