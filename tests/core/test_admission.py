"""What may go below DRAM: gates by uses, watermarks, the endurance budget, tiers with less room than was counted."""

from __future__ import annotations

import pytest

from flexkv_py.core.budget import BURST_NS, DAY_NS, WriteBudget
from flexkv_py.core.messages import Fault, MoveKind, Outcome, RoomRestored, SaveHints, Tier
from flexkv_py.core.room import SHRUNK_NS
from tests.core.conftest import CHUNKS, chain

RECORD_BYTES = 4096 + sum(CHUNKS)
TWO = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20}
THREE = {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": 1 << 20}
SECOND_NS = 1_000_000_000


def flood(bench, rounds=3, **save):
    """More new blocks than DRAM holds, saved one round after another."""
    for number in range(rounds):
        bench.save(chain(8, f"flood{number}"), **save)
        bench.settle()


def last_told(bench, key):
    return bench.planner.story(key)[-1]


def test_each_tier_has_a_gate_of_its_own(benches):
    """A block used once goes past SSD to S3 when only SSD asks for a second use, and its story says so."""
    bench = benches(**THREE, ssd_hits_min=2)
    keys = chain(2)
    bench.save(keys)
    bench.settle()
    flood(bench)
    assert bench.copy(keys[0], Tier.SSD) is None
    assert bench.copy(keys[0], Tier.S3) is not None
    [demoted] = [told for told in bench.planner.story(keys[0]) if told.what == "demote"]
    assert (demoted.tier, demoted.detail) == (Tier.S3, "not above: ssd_hits_min = 2")


def test_a_gate_of_three_counts_three_uses(benches):
    """Saved, loaded once: refused with the count in the story. Loaded twice: written."""
    bench = benches(**TWO, ssd_hits_min=3, policy="lru")
    twice, thrice = chain(2, "twice"), chain(2, "thrice")
    bench.save(twice)
    bench.save(thrice)
    bench.settle()
    for keys in (twice, thrice, thrice):
        bench.load(keys)
        bench.settle()
    flood(bench)
    assert bench.match(thrice).length == 2
    assert bench.match(twice).length == 0
    assert last_told(bench, twice[0]).detail == "admission refused it below: used 2 times, ssd_hits_min = 3"


def test_uses_count_across_an_eviction(benches):
    """A block that was dropped as used once passes the gate of two when it is saved again."""
    bench = benches(**TWO, ssd_hits_min=2, policy="lru")
    keys = chain(2)
    bench.save(keys)
    bench.settle()
    flood(bench)
    assert bench.match(keys).length == 0
    bench.save(keys)
    bench.settle()
    flood(bench)
    assert bench.match(keys).length == 2


def test_high_priority_passes_every_gate(benches):
    """A save that asks to be kept goes below at its first use."""
    bench = benches(**TWO, ssd_hits_min=9)
    keys = chain(2)
    bench.save(keys, hints=SaveHints(high_priority=True))
    bench.settle()
    flood(bench)
    assert bench.match(keys).length == 2


def test_ssd_reclaim_moves_to_s3_only_what_passes_its_gate(benches):
    """On a full SSD a block used twice moves on to S3, one used once is dropped with the gate's name."""
    bench = benches(**THREE | {"ssd_bytes": 8 * RECORD_BYTES}, s3_hits_min=2, policy="lru")
    used, unused = chain(2, "used"), chain(2, "unused")
    bench.save(used)
    bench.save(unused)
    bench.settle()
    bench.load(used)
    bench.settle()
    flood(bench, rounds=6)
    assert bench.copy(used[0], Tier.S3) is not None
    assert bench.match(unused).length == 0
    assert "s3_hits_min = 2" in last_told(bench, unused[0]).detail


def test_each_tier_has_a_watermark_of_its_own(benches):
    """With DRAM's at nothing and SSD's at a half, blocks on SSD are copied to S3 and those in DRAM are not."""
    bench = benches(**THREE | {"ssd_bytes": 8 * RECORD_BYTES}, dram_clean_ahead=0.0, ssd_clean_ahead=0.5)
    bench.save(chain(6))
    bench.settle()
    assert not bench.planner.state.levels[Tier.SSD].used_bytes
    bench.save(chain(8, "more"))
    bench.settle()
    ssd = bench.planner.state.levels[Tier.SSD]
    assert (
        sum(shelf.reclaimable.count for shelf in ssd.shelves) * RECORD_BYTES + ssd.capacity_bytes - ssd.used_bytes
        >= 4 * RECORD_BYTES
    )


def test_a_budget_has_an_hours_burst_and_fills_again():
    """One hour's share at once, then as fast as it fills; debts are paid first."""
    budget = WriteBudget(24_000)
    for _ in range(10):
        assert budget.admits(0)
        budget.draw(100, 0)
    assert not budget.admits(0)
    budget.draw(1000, 0)
    assert not budget.admits(BURST_NS)
    assert budget.admits(BURST_NS + 1)
    assert WriteBudget(0).admits(0)


def test_a_spent_budget_keeps_blocks_off_the_ssd(benches):
    """When the hour's share is written, blocks go past SSD to S3 until it fills, and say why."""
    bench = benches(**THREE, ssd_bytes_per_day=24 * 4 * RECORD_BYTES)
    flood(bench)
    ssd = bench.planner.state.levels[Tier.SSD]
    assert ssd.used_bytes == 4 * RECORD_BYTES
    passed = [told for told in bench.planner.state.story if "endurance budget" in told[4]]
    assert passed
    assert all(told[2:4] == ("demote", Tier.S3) for told in passed)
    bench.now_ns = DAY_NS
    flood(bench, rounds=1)
    bench.save(chain(8, "later"))
    bench.settle()
    assert ssd.used_bytes > 4 * RECORD_BYTES


def test_an_acknowledged_save_may_overdraw_the_budget(benches):
    """ack=ssd is kept whatever the budget says, and counted; what nobody insists on pays for it."""
    bench = benches(**TWO, ssd_bytes_per_day=24 * RECORD_BYTES)
    ticket = bench.save(chain(5), ack=Tier.SSD)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED] * 5
    assert bench.planner.counters["over_budget", "ssd"] == 4
    flood(bench)
    assert bench.planner.state.levels[Tier.SSD].used_bytes == 5 * RECORD_BYTES
    assert bench.planner.counters["refused_admissions", "endurance budget"] > 0
    assert "endurance budget" in last_told(bench, chain(8, "flood0")[0]).detail


@pytest.mark.parametrize("after_ns", [SHRUNK_NS, 0], ids=["in time", "told"])
def test_a_tier_that_says_full_makes_room_itself(benches, after_ns):
    """A write that fails FULL below the capacity drops the coldest records; the tier is then taken for that small until
    time has passed, or it says that it has its room again.
    """
    bench = benches(**TWO, policy="lru", dram_clean_ahead=0.0)
    ticket = bench.save(chain(4), ack=Tier.SSD)
    bench.settle()
    ssd = bench.planner.state.levels[Tier.SSD]
    ticket = bench.save(chain(1, "one more"), ack=Tier.SSD)
    bench.settle_copies()
    [write] = bench.moves(MoveKind.DEMOTE)
    bench.finish(write.transfer, Fault.FULL)
    drops = bench.moves(MoveKind.DROP)
    assert len(drops) == 2, "room for this record and the next"
    assert ssd.capacity_bytes == 4 * RECORD_BYTES
    bench.settle()
    bench.now_ns = SECOND_NS  # the pause after the fault
    bench.tick()
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED]
    assert ssd.used_bytes == 3 * RECORD_BYTES
    bench.now_ns += after_ns
    if after_ns:
        bench.tick()
    else:
        bench.post(RoomRestored(Tier.SSD, bench.now_ns))
    assert ssd.capacity_bytes == TWO["ssd_bytes"]


def test_a_full_tier_that_can_drop_nothing_refuses(benches):
    """FULL with nothing there to drop is told to the saver with the tier's own words."""
    bench = benches(**TWO)
    ticket = bench.save(chain(1), ack=Tier.SSD)
    bench.settle_copies()
    for write in bench.moves(MoveKind.DEMOTE):
        bench.finish(write.transfer, Fault.FULL)
    assert bench.outcomes(ticket) == [Outcome.REFUSED]


def too_long(bench, ticket_keys=("long",), **save):
    """Save blocks the SSD says can never fit; returns the tickets and the one write that found out."""
    tickets = [bench.save(chain(1, key), **save) for key in ticket_keys]
    bench.settle_copies()
    [write, *others] = bench.moves(MoveKind.DEMOTE)
    for each in (write, *others):
        bench.finish(each.transfer, Fault.TOO_LONG)
    bench.settle_once()
    return tickets


def test_a_record_that_can_never_fit_moves_nobody(benches):
    """TOO_LONG drops nothing, shrinks nothing, pauses nothing, and refuses that save and the next at once."""
    bench = benches(**TWO, policy="lru", dram_clean_ahead=0.0)
    bench.save(chain(4), ack=Tier.SSD)
    bench.settle()
    ssd = bench.planner.state.levels[Tier.SSD]
    [ticket] = too_long(bench, ack=Tier.SSD)
    later = bench.save(chain(1, "later"), ack=Tier.SSD)
    bench.settle_copies()
    assert not bench.moves(MoveKind.DEMOTE)
    assert bench.outcomes(ticket) == bench.outcomes(later) == [Outcome.REFUSED]
    assert not bench.moves(MoveKind.DROP)
    assert (ssd.capacity_bytes, ssd.used_bytes) == (TWO["ssd_bytes"], 4 * RECORD_BYTES)
    assert (ssd.pause_until_ns, ssd.faults_in_row) == (0, 0)


def test_a_record_that_can_never_fit_goes_past_ssd(benches):
    """With S3 such blocks go there; without, they are dropped, and the story says why SSD did not take them."""
    for tiers, demoted in ((TWO, []), (THREE, [Tier.S3])):
        bench = benches(**tiers, policy="lru")
        too_long(bench, ack=Tier.SSD)
        [key] = chain(1, "long")
        flood(bench)
        told = bench.planner.story(key)
        assert [each.tier for each in told if each.what == "demote" and each.detail != "demanded"] == demoted
        assert any("no tier below takes it: too_long" in each.detail for each in told) == (not demoted)
