"""Which tenants have series of their own: few, the most used, and every series only grows."""

import random
from collections import Counter

from flexkvd.tenant_counts import ELECTION_NS, OTHER, WATCHED_MAX, TenantCounts


def ask(counts: TenantCounts, tenant: str, keys: int) -> None:
    counts.of(tenant, keys)["matched_keys", "hit"] += keys


def totals(counts: TenantCounts) -> dict[str, int]:
    return {tenant: sum(each.values()) for tenant, each in counts.all()}


def test_who_is_used_most_takes_the_name_of_who_is_used_least() -> None:
    """A late but heavy tenant is named at the next election, from 0 on; what it had before stays with the others."""
    counts = TenantCounts(2)
    for tenant, keys in (("a", 10), ("b", 100), ("c", 50)):
        ask(counts, tenant, keys)
    assert totals(counts) == {"a": 10, "b": 100, OTHER: 50}
    counts.elect(ELECTION_NS - 1)
    assert sorted(counts.names()) == ["a", "b"]
    counts.elect(ELECTION_NS)
    ask(counts, "c", 1)
    ask(counts, "a", 1)
    assert totals(counts) == {"b": 100, "c": 1, OTHER: 51}


def test_names_do_not_change_to_and_fro() -> None:
    """A tenant used a little more than a named one does not displace it."""
    counts = TenantCounts(1)
    ask(counts, "a", 100)
    for minute in range(1, 10):
        ask(counts, "a", 100)
        ask(counts, "b", 130)
        counts.elect(minute * ELECTION_NS)
        assert counts.names() == ["a"]


def test_a_tenant_that_calls_itself_other_has_no_name() -> None:
    """Its series would be that of the rest."""
    counts = TenantCounts(5)
    ask(counts, OTHER, 3)
    ask(counts, "a", 1)
    counts.elect(ELECTION_NS)
    assert totals(counts) == {"a": 1, OTHER: 3}


def test_without_names_everything_is_counted_together() -> None:
    """`metrics_tenants_max = 0` shows no tenant."""
    counts = TenantCounts(0)
    ask(counts, "a", 3)
    counts.elect(ELECTION_NS)
    assert totals(counts) == {OTHER: 3}


def test_totals_kept_elsewhere_are_followed() -> None:
    """What a total has grown by is counted where its tenant is at that moment; one that began anew counts from 0."""
    counts = TenantCounts(1)
    ask(counts, "a", 0)
    counts.follow("evictions", {("a", "ssd"): 5, ("b", "ssd"): 3})
    counts.follow("evictions", {("a", "ssd"): 7, ("b", "ssd"): 3})
    counts.follow("evictions", {("a", "ssd"): 2})
    assert totals(counts) == {"a": 9, OTHER: 3}
    assert (counts.shown("a"), counts.shown("b")) == ("a", OTHER)


def test_whatever_tenants_come_nothing_is_lost_and_memory_is_bounded() -> None:
    """Over many minutes of many tenants no series shrinks, and all grow together by exactly what was asked."""
    chance, counts, before = random.Random(7), TenantCounts(8), Counter[str]()
    for minute in range(1, 40):
        asked = 0
        for _ in range(400):
            keys = chance.randrange(1, 50)
            ask(counts, f"t{int(chance.expovariate(0.02)) + minute}", keys)
            asked += keys
        after = Counter(totals(counts))
        grown = sum(value - before[tenant] for tenant, value in after.items())
        assert all(value >= before[tenant] for tenant, value in after.items())
        assert grown == asked
        assert len(after) <= 9
        counts.elect(minute * ELECTION_NS)
        before = Counter(totals(counts))
    for number in range(2 * WATCHED_MAX):
        ask(counts, f"flood{number}", 1)
    assert counts.known <= WATCHED_MAX
