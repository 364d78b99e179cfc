"""Tiers as answers: occupancy, links, latencies, breaker, wear, and what each store says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flexkv_py.core.messages import MoveKind, TicketKind, Tier
from flexkv_py.core.state import Level
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.control.quantiles import quantiles
from flexkvd.durations import Durations
from flexkvd.facts import spent_bytes, tier_facts
from flexkvd.links import Link
from flexkvd.parts import Parts

COPY_LINKS = {"worker_dram": TicketKind.SAVE, "dram_worker": TicketKind.LOAD}
"""Copies between workers and DRAM, which have lanes instead of a queue, and the tickets that make them."""
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
        return level.policy.count + level.reclaimable.count + level.writes.count

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
            took = self._parts.executor.copies.copy_time
            return [
                _link(
                    name,
                    None,
                    traffic.bytes[name],
                    faults[name],
                    [each for (by, _), each in took.items() if by == kind],
                )
                for name, kind in COPY_LINKS.items()
            ]
        links = [self._parts.executor.links[tier, kind] for kind in MoveKind]
        return [
            _link(link.name, link, traffic.bytes[link.name], faults[link.name], link.move_time.values())
            for link in links
        ]

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


def _link(name: str, link: Link | None, moved_bytes: int, faults: int, took: Iterable[Durations]) -> dict[str, Any]:
    """`link` is None for copies between workers and DRAM; `took` has what moves took, by priority."""
    return {
        "link": name,
        "bytes": moved_bytes,
        "waiting": link.waiting if link else 0,
        "running": link.running if link else 0,
        "running_bytes": link.running_bytes if link else 0,
        "dropped": link.dropped if link else 0,
        "faults": faults,
        "queue_s": quantiles(link.queue_time.values() if link else ()),
        "seconds": quantiles(took),
    }


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
        "spent_bytes": spent_bytes(budget, parts.engine.now_ns()),
        "write_amplification": status["write_amplification"],
    }
