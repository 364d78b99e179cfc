"""Tiers as answers: occupancy, links, latencies, breaker, wear, and what each store says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flexkv_py.core.messages import MoveKind, Tier
from flexkv_py.core.state import Level
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.durations import Durations, quantiles
from flexkvd.facts import tier_facts
from flexkvd.links import Link
from flexkvd.parts import Parts

COPY_LINKS = {"worker_dram": ("save",), "dram_worker": ("load",)}
"""Copies between workers and DRAM, with the operations they belong to."""
COUNTED = ("hits", "promotions", "demotions", "evictions")


class Tiers:
    """All that is known of tiers, as plain data. Every answer is read off counters: none is a scan."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def all(self) -> list[dict[str, Any]]:
        """From HBM down; only tiers this daemon has, and HBM when workers of the row path are there or not."""
        return [self._hbm(), *(self._of(level) for level in self._parts.planner.state.levels.values())]

    def one(self, word: str) -> dict[str, Any]:
        """One tier. Raises FlexKVError(NOT_FOUND) for one that this daemon is configured without."""
        if word == "hbm":
            return self._hbm()
        level = self._parts.planner.state.levels.get(Tier[word.upper()])
        if level is None:
            raise FlexKVError(
                ErrorCode.NOT_FOUND, f"this daemon is configured without {word}: name a tier that /v1/tiers lists"
            )
        return self._of(level)

    def blocks_in(self, level: Level) -> int:
        """Copies that stand in the tier's order or are being written; those being read are in neither."""
        return sum(shelf.count for shelf in level.shelves) + level.writes.count

    def _of(self, level: Level) -> dict[str, Any]:
        parts, tier = self._parts, level.tier
        status = self._status(tier)
        return {
            "tier": level.word,
            **tier_facts(parts.planner.state, level),
            "blocks": self.blocks_in(level),
            **self._counted(level.word),
            "links": self._links(tier),
            "breaker": _breaker(status) if tier is Tier.S3 else None,
            "wear": _wear(parts, status) if tier is Tier.SSD else None,
            "detail": dict(status),
        }

    def _status(self, tier: Tier) -> Mapping[str, Any]:
        parts = self._parts
        return parts.arena.status() if tier is Tier.DRAM else parts.stores[tier][0].status()

    def _counted(self, word: str) -> dict[str, int]:
        counters = self._parts.planner.counters
        faults = sum(
            count for (name, label), count in counters.items() if name == "faults" and label.startswith(f"{word}_")
        )
        return {**{name: counters.get((name, word), 0) for name in COUNTED}, "faults": faults}

    def _links(self, tier: Tier) -> list[dict[str, Any]]:
        traffic = self._parts.executor.traffic
        faults: Counter[str] = Counter()
        for (name, _), count in traffic.faults.items():
            faults[name] += count
        if tier is Tier.DRAM:
            took = self._parts.executor.copies.copy_time.items()
            return [
                {**_facts(name, traffic.bytes[name], faults[name]), "seconds": _quantiles(_of_words(took, kinds))}
                for name, kinds in COPY_LINKS.items()
            ]
        links = [self._parts.executor.links[tier, kind] for kind in MoveKind]
        return [_link(link, traffic.bytes[link.name], faults[link.name]) for link in links]

    def _hbm(self) -> dict[str, Any]:
        """What workers of the row path report; rooms and bytes of HBM are theirs, not ours to know."""
        readers = self._parts.row_path.readers.values()
        counters = self._parts.planner.counters
        requests = sum(len(reader.attached) for reader in readers)
        detail = {"readers": len(readers), "requests": requests, **dict(self._parts.row_path.traffic.pages)}
        counts = dict.fromkeys(("used_bytes", "evictable_blocks", "reclaimable_blocks", "writes_in_flight"), 0)
        counted = {name: counters.get((name, "hbm"), 0) for name in COUNTED}
        return {
            "tier": "hbm",
            "up": True,
            "down_reason": "",
            "capacity_bytes": None,
            "faults": 0,
            **counts,
            **counted,
            "blocks": sum(sum(reader.attached.values()) for reader in readers),
            "links": [],
            "breaker": None,
            "wear": None,
            "detail": detail,
        }


def _facts(name: str, moved_bytes: int, faults: int) -> dict[str, Any]:
    """A link without a queue: copies between workers and DRAM have lanes instead."""
    counts = dict.fromkeys(("waiting", "running", "running_bytes", "dropped"), 0)
    return {"link": name, "bytes": moved_bytes, **counts, "faults": faults, "queue_s": _quantiles(())}


def _link(link: Link, moved_bytes: int, faults: int) -> dict[str, Any]:
    return {
        **_facts(link.name, moved_bytes, faults),
        "waiting": link.waiting,
        "running": link.running,
        "running_bytes": link.running_bytes,
        "dropped": link.dropped,
        "queue_s": _quantiles(link.queue_time.values()),
        "seconds": _quantiles(link.move_time.values()),
    }


def _of_words(took: Iterable[tuple[tuple[str, ...], Durations]], words: tuple[str, ...]) -> list[Durations]:
    """Those of these operations, whatever their priority."""
    return [durations for labels, durations in took if labels[0] in words]


def _quantiles(of: Iterable[Durations]) -> dict[str, float | None]:
    return {"p50": None, "p99": None, **(quantiles(of) or {})}


def _breaker(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "state": status["breaker"],
        "opened": status["breaker_opened"],
        "rate_per_s_max": status["rate_per_s_max"],
        "retry_tokens": status["retry_tokens"],
    }


def _wear(parts: Parts, status: Mapping[str, Any]) -> dict[str, Any]:
    budget = parts.planner.state.levels[Tier.SSD].budget
    return {
        "written_bytes": status["written_bytes"],
        "budget_bytes_per_day": budget.bytes_per_day,
        "spent_bytes": budget.spent_bytes(parts.engine.now_ns()),
        "write_amplification": status["write_amplification"],
    }
