"""Quotas, shares, ends and ranks of blocks as the planner keeps them: events in, instructions out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flexkv_py.core.messages import (
    BlocksFound,
    FoundBlock,
    NamespaceReset,
    NamespacesNamed,
    NamespaceSpec,
    Outcome,
    QuotaChanged,
    RecoveryFinished,
    SaveHints,
    SessionClosed,
    SessionOpened,
    TicketFinished,
    Tier,
    TimePassed,
)
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkv_py.tenants.owner import NO_QUOTA, Marker, Quota
from tests import invariants
from tests.core.conftest import CHUNKS, Bench, chain, make_bench

BLOCK_BYTES = len(CHUNKS) * max(CHUNKS)
RECORD_BYTES = 4096 + sum(CHUNKS)
OTHER = NamespaceSpec(NamespaceDigest(b"o" * 32), CHUNKS)
SECOND_NS = 1_000_000_000


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A maker of benches with two tenants: session 1 is `default`'s, session 2 is `other`'s."""
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        bench = make_bench(**config)
        bench.post(SessionOpened(2, OTHER, 0, 0, tenant="other"))
        made.append(bench)
        return bench

    yield make
    for bench in made:
        invariants.check(bench.planner)


def save(bench: Bench, keys: list[BlockKey], session: int = 1, **hints: Any) -> int:
    """Save unrelated blocks, each its own chain, and let all end."""
    ticket = 0
    for key in keys:
        ticket = bench.save([key], session=session, hints=SaveHints(**hints))
        bench.settle()
    return ticket


def held(bench: Bench, keys: list[BlockKey], tier: Tier = Tier.DRAM, spec: NamespaceDigest | None = None) -> list[bool]:
    index = next(index for (digest, _), index in bench.planner.state.indexes.items() if spec is None or digest == spec)
    return [(block := index.blocks.get(key)) is not None and block.copy_in(tier) is not None for key in keys]


def test_a_tenant_at_its_quota_gives_up_its_own_coldest(two):
    """DRAM has room for eight, the quota for two: the third save takes the oldest block of its tenant, and no other."""
    bench = two(quotas={"default": Quota(dram_bytes=2 * BLOCK_BYTES)})
    others, keys = chain(3, "other"), chain(3)
    save(bench, others, session=2)
    save(bench, keys)
    assert held(bench, keys) == [False, True, True]
    assert held(bench, others, spec=OTHER.digest) == [True] * 3


def test_a_block_larger_than_the_quota_is_refused_at_once(two):
    """It could never fit: the saver hears so, and why, instead of waiting for its deadline."""
    bench = two(quotas={"default": Quota(dram_bytes=BLOCK_BYTES - 1)})
    ticket = save(bench, chain(1))
    assert bench.outcomes(ticket) == [Outcome.REFUSED]
    [finished] = [told for told in bench.told if isinstance(told, TicketFinished)]
    assert "the quota of tenant 'default' is" in finished.detail
    assert bench.outcomes(save(bench, chain(1, "other"), session=2)) == [Outcome.STORED]


def test_what_a_quota_has_no_room_for_is_throttled_with_the_reason(two):
    """All of the tenant's blocks are held: its save waits till the deadline, and hears that the quota is why."""
    bench = two(quotas={"default": Quota(dram_bytes=BLOCK_BYTES)})
    [first, second] = chain(2)
    save(bench, [first])
    bench.match([first], hold_ns=SECOND_NS)
    ticket = bench.save([second], deadline_ns=10)
    bench.now_ns = 10
    bench.tick()
    assert bench.outcomes(ticket) == [Outcome.THROTTLED]
    told = next(told for told in bench.told if isinstance(told, TicketFinished) and told.ticket == ticket)
    assert "tenant 'default' is at its quota of DRAM" in told.detail


def test_who_waits_for_his_own_quota_holds_up_nobody_else(two):
    """A save and a load of the other tenant go on while one tenant's save has no room in its quota."""
    bench = two(quotas={"default": Quota(dram_bytes=BLOCK_BYTES)}, dram_segments=2)
    [first, second] = chain(2)
    save(bench, [first])
    bench.match([first], hold_ns=SECOND_NS)
    bench.save([second])
    [one, two_] = chain(2, "other")
    assert bench.outcomes(save(bench, [one], session=2)) == [Outcome.STORED]
    ticket = save(bench, [two_], session=2)  # evicts `one`: DRAM is full, and the first tenant's block is leased
    assert bench.outcomes(ticket) == [Outcome.STORED]


def test_a_flood_takes_no_more_than_its_share(two):
    """Eight blocks fit: the one that saves twenty leaves the other its four, whatever their age."""
    bench = two()
    keys = chain(4)
    save(bench, keys)
    save(bench, chain(20, "flood"), session=2)
    assert held(bench, keys) == [True] * 4


def test_shares_are_by_weight(two):
    """With three times the weight the flood may have three quarters: two of the other's four blocks go."""
    bench = two(quotas={"other": Quota(weight=3.0)})
    keys = chain(4)
    save(bench, keys)
    save(bench, chain(20, "flood"), session=2)
    assert held(bench, keys) == [False, False, True, True]


def test_a_demotion_respects_the_quota_below(two):
    """Three records fit the SSD, one fits the quota: the tenant's coldest record makes room, others' stay."""
    tables = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20, "dram_clean_ahead": 0.0}
    bench = two(quotas={"default": Quota(ssd_bytes=RECORD_BYTES)}, **tables)
    [first, second], [other] = chain(2), chain(1, "other")
    for session, key in ((2, other), (1, first), (1, second)):
        ticket = bench.save([key], session=session, ack=Tier.SSD)
        bench.settle()
        assert bench.outcomes(ticket) == [Outcome.STORED]
    assert held(bench, [first, second], Tier.SSD) == [False, True]
    assert held(bench, [other], Tier.SSD, OTHER.digest) == [True]


def test_a_quota_that_never_takes_a_record_refuses_the_promise(two):
    """Acknowledged at ssd it cannot be: refused with the reason, and nothing of it is written."""
    tables = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20}
    bench = two(quotas={"default": Quota(ssd_bytes=1)}, **tables)
    ticket = bench.save(chain(1), ack=Tier.SSD)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.REFUSED]
    assert bench.planner.state.levels[Tier.SSD].used_bytes == 0


def test_a_lowered_quota_is_reached_by_itself(two):
    """What is above it goes at once, oldest first; a quota taken away gives room again."""
    bench = two()
    keys = chain(4)
    save(bench, keys)
    bench.post(QuotaChanged("default", Quota(dram_bytes=2 * BLOCK_BYTES), 0))
    assert held(bench, keys) == [False, False, True, True]
    bench.post(QuotaChanged("default", NO_QUOTA, 0))
    save(bench, keys[:2])
    assert held(bench, keys) == [True] * 4


def test_what_is_found_counts_for_its_tenant_as_soon_as_its_name_is_known(two):
    """Unknown's until a session names it, with its place in the order; or at once, where it was written down."""
    bench = two(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20)
    state, third = bench.planner.state, NamespaceSpec(NamespaceDigest(b"t" * 32), CHUNKS)
    named = NamespaceSpec(NamespaceDigest(b"n" * 32), CHUNKS)
    bench.post(NamespacesNamed([(named.digest, "known")], 0))
    found = [FoundBlock(key, ROOT, at) for at, key in enumerate(chain(3, "found"))]
    for spec in (third, named):
        bench.post(BlocksFound(Tier.SSD, spec.digest, 0, RECORD_BYTES, found, 0, CHUNKS))
    assert state.tenants.find(Marker.UNKNOWN).shelves[Tier.SSD].used_bytes == 3 * RECORD_BYTES
    assert state.tenants.find("known").shelves[Tier.SSD].used_bytes == 3 * RECORD_BYTES
    bench.post(SessionOpened(3, third, 0, 0, tenant="other"))
    bench.tick()
    assert state.tenants.find(Marker.UNKNOWN).shelves[Tier.SSD].used_bytes == 0
    shelf = state.tenants.find("other").shelves[Tier.SSD]
    assert (shelf.used_bytes, shelf.count) == (3 * RECORD_BYTES, 3)


def test_a_tenant_with_nothing_left_is_forgotten(two):
    """Or each that ever came would be one of `tenants_max`; what it left behind keeps it known."""
    bench = two()
    bench.post(SessionOpened(3, NamespaceSpec(NamespaceDigest(b"3" * 32), CHUNKS), 0, 0, tenant="third"))
    save(bench, chain(1, "other"), session=2)
    for session in (2, 3):
        bench.post(SessionClosed(session, 0))
    assert bench.planner.state.tenants.find("third") is None
    assert bench.planner.state.tenants.find("other") is not None


def test_a_tenant_whose_namespace_is_being_reset_is_known_until_that_has_ended(two):
    """A recovery may still find records of it: they are its own until dropped, and then nothing keeps it known."""
    bench = two(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20, recovers=(Tier.SSD,))
    state, keys = bench.planner.state, chain(2, "found")
    bench.post(SessionOpened(3, OTHER, 0, 0, tenant="other"))
    bench.post(NamespaceReset(2, 50, OTHER.digest, 0))
    for location, key in enumerate(keys):
        bench.post(BlocksFound(Tier.SSD, OTHER.digest, 0, RECORD_BYTES, [FoundBlock(key, ROOT, location)], 0))
        assert state.tenants.find("other").shelves[Tier.SSD].used_bytes == RECORD_BYTES
        bench.settle()
        bench.post(SessionClosed(2 + location, 0))
        invariants.check(bench.planner)
    bench.post(RecoveryFinished(Tier.SSD, 0))
    assert not state.resets
    bench.post(SessionClosed(1, 0))
    assert list(state.tenants) == []


def test_a_block_is_dropped_from_every_tier_when_its_time_ends(two):
    """With its story; one that was saved again without an end stays."""
    bench = two(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20)
    [brief, kept] = chain(2)
    for key in (brief, kept):
        bench.save([key], ack=Tier.SSD, hints=SaveHints(retention_ns=3 * SECOND_NS))
        bench.settle()
    save(bench, [kept])
    while not bench.planner.next_deadline_ns():
        bench.tick()
    bench.now_ns = bench.planner.next_deadline_ns()
    assert bench.now_ns == 3 * SECOND_NS
    bench.tick()
    bench.settle()
    assert [held(bench, [brief, kept], tier) for tier in (Tier.DRAM, Tier.SSD)] == [[False, True]] * 2
    ends = [event.tier for event in bench.planner.story(brief) if event.detail == "its retention time has ended"]
    assert ends == [Tier.DRAM, Tier.SSD]
    assert bench.planner.counters["expired", "ssd"] == 1


def test_a_lease_outlasts_the_time_of_a_block(two):
    """Who holds it may still load it; it goes when the lease has ended."""
    bench = two()
    keys = chain(1)
    save(bench, keys, retention_ns=SECOND_NS)
    bench.match(keys, hold_ns=4 * SECOND_NS)
    bench.post(TimePassed(2 * SECOND_NS))
    assert held(bench, keys) == [True]
    for bench.now_ns in (6 * SECOND_NS, 7 * SECOND_NS):
        bench.tick()
    assert held(bench, keys) == [False]


def test_ranks_say_who_leaves_first(two):
    """Low before the rest, whatever was used last; high after all others of the tenant."""
    bench = two(dram_segments=3)
    [high, plain, low, more, most] = chain(5)
    save(bench, [high], high_priority=True)
    save(bench, [plain])
    save(bench, [low], low_priority=True)
    save(bench, [more])
    assert held(bench, [high, plain, low]) == [True, True, False]
    save(bench, [most])
    assert held(bench, [high, plain, more]) == [True, False, True]


def test_low_priority_goes_below_only_once_used_again(two):
    """It leaves unwritten when DRAM is short; a promise at ssd is kept all the same."""
    bench = two(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20, dram_segments=2, dram_clean_ahead=0.0)
    [low, asked, more, most] = chain(4)
    save(bench, [low], low_priority=True)
    bench.save([asked], ack=Tier.SSD, hints=SaveHints(low_priority=True))
    bench.settle()
    save(bench, [more, most])
    assert held(bench, [low, asked], Tier.SSD) == [False, True]
    assert any(event.detail.startswith("admission refused it below") for event in bench.planner.story(low))
