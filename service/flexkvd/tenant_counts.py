"""Counters by tenant in a bounded number of series: the most used tenants by name, all others together.

Owns which tenants are named. What is counted goes to the series that its tenant has at that moment, so every
series only ever grows, and rates over all of them are right; a tenant that takes another's name begins at 0, as
after a restart. Pure; `usage` counts, `measures` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest

OTHER = "other"
"""The rest. A tenant that calls itself so is counted there."""
WATCHED_MAX = 4096
"""Tenants whose use is remembered. More than these in one minute are counted, but cannot earn a name in it."""
ELECTION_NS = 60_000_000_000
DISPLACES_MIN = 2.0
"""A tenant takes another's name once it is used so much more: names that change to and fro make no graph."""

Counts = Counter[tuple[str, ...]]
"""By name of a family without `flexkv_tenant_` and `_total`, and the values of its labels after `tenant`."""


class TenantCounts:
    """See the module's docstring."""

    def __init__(self, named_max: int, now_ns: int = 0) -> None:
        self._named_max = named_max
        self._named: dict[str, Counts] = {}
        self._other: Counts = Counter()
        self._recent: dict[str, float] = {}  # keys asked for, those before each election weigh half
        self._followed: dict[str, Mapping[tuple[str, str], int]] = {}  # totals kept elsewhere, as last told
        self._election_ns = now_ns + ELECTION_NS

    @property
    def known(self) -> int:
        """Tenants used of late."""
        return len(self._recent)

    def names(self) -> list[str]:
        """Those that have series of their own."""
        return list(self._named)

    def of(self, tenant: str, keys: int) -> Counts:
        """Where to count something of a tenant, who asked for so many keys with it."""
        recent = self._recent
        if tenant in recent or len(recent) < WATCHED_MAX:
            recent[tenant] = recent.get(tenant, 0.0) + keys
        if tenant not in self._named and len(self._named) < self._named_max and tenant != OTHER:
            self._named[tenant] = Counter()
        return self._named.get(tenant, self._other)

    def shown(self, tenant: str) -> str:
        """The name it is counted under now."""
        return tenant if tenant in self._named else OTHER

    def follow(self, name: str, totals: Mapping[tuple[str, str], int]) -> None:
        """Count what totals that others keep have grown by, by tenant and label; one that is smaller began anew."""
        before = self._followed.get(name, {})
        for (tenant, label), total in totals.items():
            grown = total - before.get((tenant, label), 0)
            if grown:
                self._named.get(tenant, self._other)[name, label] += grown if grown > 0 else total
        self._followed[name] = totals

    def all(self) -> Iterator[tuple[str, Counts]]:
        """Each named tenant, then the others, if there ever were any."""
        yield from self._named.items()
        if self._other:
            yield OTHER, self._other

    def elect(self, now_ns: int) -> None:
        """Once a minute, let tenants that are used much more take the names of those used least."""
        if now_ns < self._election_ns:
            return
        self._election_ns = now_ns + ELECTION_NS
        recent, named = self._recent, self._named
        hidden = (tenant for tenant in recent if tenant not in named and tenant != OTHER)
        rising = nlargest(self._named_max, hidden, key=recent.__getitem__)
        least = sorted(named, key=lambda tenant: recent.get(tenant, 0.0))
        for tenant, displaced in zip(rising, least, strict=False):
            if recent[tenant] <= DISPLACES_MIN * recent.get(displaced, 0.0):
                break
            del named[displaced]
            named[tenant] = Counter()
        self._recent = {tenant: use / 2 for tenant, use in recent.items() if use >= 1.0}
