"""Damage that somebody found by looking: the copy is none any more, unless it is another one by then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import Fault, MoveKind, SessionOpened, Tier
from flexkv_py.core.planner import Planner
from flexkv_py.damage import DamageFound, handlers
from flexkv_py.keys import BlockKey
from tests import invariants
from tests.core.conftest import NAMESPACE, SEGMENT_BYTES, SPEC, Bench, chain


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Two tiers, with three saved blocks in both; everything is recounted at the end."""
    config = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20, "segment_bytes": SEGMENT_BYTES, "dram_segments": 8}
    bench = Bench(Planner(PlannerConfig(**config), [handlers]))
    bench.post(SessionOpened(1, SPEC, 0, 0))
    bench.save(chain(3), ack=Tier.SSD)
    bench.settle()
    yield bench
    bench.settle()
    invariants.check(bench.planner)


def found(bench: Bench, key: BlockKey, tier: Tier, place: bytes | int | None = None) -> None:
    copy = bench.copy(key, tier)
    assert copy is not None
    wrong = copy.place if place is None else place
    bench.post(DamageFound(tier, copy.block.name, wrong, "found by verify", bench.now_ns))


def test_a_damaged_record_is_dropped_and_the_block_stays_in_dram(bench: Bench) -> None:
    """The tier is told to drop it, the block is still a hit, and it is counted as a fault of that tier."""
    key = chain(3)[1]
    found(bench, key, Tier.SSD)
    [drop] = bench.moves(MoveKind.DROP)
    assert (drop.block.key, drop.tier) == (key, Tier.SSD)
    assert bench.match(chain(3)).length == 3
    assert bench.planner.counters["faults", "ssd_corrupt"] == 1
    assert bench.planner.story(key)[-1].detail == "corrupt: found by verify"


def test_a_damaged_frame_is_no_copy_and_the_block_comes_from_below(bench: Bench) -> None:
    """Its frames are free, and a load promotes the block again."""
    key = chain(3)[2]
    found(bench, key, Tier.DRAM)
    assert bench.copy(key, Tier.DRAM) is None
    bench.load(chain(3))
    [promotion] = bench.moves(MoveKind.PROMOTE)
    assert promotion.block.key == key


def test_the_last_copy_gone_ends_the_prefix(bench: Bench) -> None:
    """Damaged in both tiers, the block is a miss, and so is what follows it."""
    key = chain(3)[1]
    found(bench, key, Tier.DRAM)
    found(bench, key, Tier.SSD)
    assert bench.match(chain(3)).length == 1


@pytest.mark.parametrize("fault", [None, Fault.IO])
def test_a_block_found_damaged_while_it_is_written_is_what_came_of_that(bench: Bench, fault: Fault | None) -> None:
    """Its record makes it a hit again as soon as that is whole; without one nothing of it is left."""
    [key] = chain(1, "new")
    bench.save([key], ack=Tier.SSD)
    bench.settle_copies()
    [demotion] = bench.moves(MoveKind.DEMOTE)
    found(bench, key, Tier.DRAM)
    assert bench.match([key]).length == 0
    bench.finish(demotion.transfer, fault)
    assert bench.match([key]).length == (fault is None)
    assert (key in bench.planner.state.index(NAMESPACE, 0).blocks) == (fault is None)


def test_what_lies_elsewhere_by_now_is_left_alone(bench: Bench) -> None:
    """A finding about another place than the copy's says nothing of the copy; one about no block at all, nothing."""
    key = chain(3)[0]
    found(bench, key, Tier.SSD, 4711)
    found(bench, key, Tier.DRAM, b"\1\2\3\4")
    assert bench.match(chain(3)).length == 3
    block = bench.copy(key, Tier.DRAM).block.name
    unknown = DamageFound(Tier.S3, block, 1, "", bench.now_ns)
    bench.post(unknown)
    assert ("faults", "ssd_corrupt") not in bench.planner.counters
