"""What an operator is shown: pages of blocks, single ones, and why one is or is not a hit."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import NamespaceReset, Tier, TierChanged
from flexkv_py.explain import NEVER_SEEN, explain
from flexkv_py.keys import ROOT
from flexkv_py.operating.listing import KEYS_PER_SLICE_MAX, Page, facts_of_key, pinned_blocks
from flexkv_py.operating.messages import Choice, OperationKind
from tests.core.conftest import NAMESPACE, chain
from tests.operating.conftest import SECOND
from tests.operating.test_operations import WITH_SSD, saved


def listed(bench: Any, prefix: str = "", after: bytes = b"", limit: int = 100) -> list[Any]:
    page = Page(bench.state, prefix, after, limit)
    while page.slice():
        pass
    return page.smallest


def said(bench: Any, key: Any) -> str:
    return explain(bench.state, key, bench.now_ns)


def test_pages_list_every_block_once_in_order(benches: Any) -> None:
    """Page after page of seven: all keys, sorted, whatever order they were saved in."""
    bench = benches(dram_segments=40)
    keys = saved(bench, 30)
    met: list[Any] = []
    while page := listed(bench, after=met[-1] if met else b"", limit=7):
        met += page
    assert met == sorted(keys)


def test_pages_list_what_begins_with_a_prefix(benches: Any) -> None:
    """An odd number of digits, an even one, and one that fits nothing."""
    bench = benches(dram_segments=40)
    keys = saved(bench, 30)
    for digits in (1, 2, 5):
        prefix = keys[3].hex()[:digits]
        assert listed(bench, prefix) == sorted(key for key in keys if key.hex().startswith(prefix))
    assert listed(bench, "f" * 32) == []


def test_a_page_takes_a_bounded_number_of_keys_at_a_time(benches: Any) -> None:
    """More keys than one slice takes: it takes several."""
    count = KEYS_PER_SLICE_MAX + 10
    bench = benches(dram_segments=count, segment_bytes=1 << 14)
    keys = saved(bench, count)
    page, slices = Page(bench.state, "", None, 3), 0
    while page.slice():
        slices += 1
    assert slices == 3  # to take the keys of the index, and twice to look at them
    assert page.smallest == sorted(keys)[:3]


def test_facts_of_a_block(benches: Any) -> None:
    """Its tiers, bytes, and who keeps it: a pin, a lease."""
    bench = benches(**WITH_SSD)
    keys = saved(bench, 2)
    bench.operate(OperationKind.DEMOTE, Tier.SSD)
    bench.pin(keys[:1])
    bench.match(keys[:1], hold_ns=SECOND)
    [facts] = facts_of_key(bench.state, keys[0])
    assert (facts.tiers, facts.pinned, facts.leased, facts.matchable) == ((Tier.DRAM, Tier.SSD), True, True, True)
    assert (facts.parent, facts.shard, facts.namespace) == (ROOT, 0, NAMESPACE)
    assert facts.bytes == 2 * 8192 + 4096 + 12288
    [other] = facts_of_key(bench.state, keys[1])
    assert (other.pinned, other.leased, other.readers) == (False, False, 0)
    [pinned] = pinned_blocks(bench.state)
    assert (pinned.key, pinned.until_ns, pinned.tiers) == (keys[0], SECOND, (Tier.DRAM, Tier.SSD))
    assert facts_of_key(bench.state, chain(1, "unknown")[0]) == []


def test_a_hit_is_explained_by_where_it_is(benches: Any) -> None:
    """In both tiers, and which of them serves."""
    bench = benches(**WITH_SSD)
    keys = saved(bench, 2)
    bench.operate(OperationKind.DEMOTE, Tier.SSD)
    assert said(bench, keys[1]) == "a hit: whole in dram and ssd, as is its whole prefix; a load takes it from dram"


def test_a_miss_below_a_hole_names_the_hole(benches: Any) -> None:
    """The parent was evicted: when, why, and what helps; and further down the ancestor is named."""
    bench = benches()
    keys = saved(bench, 3)
    bench.operate(OperationKind.EVICT, Tier.DRAM, Choice(keys=(keys[0],)))
    bench.now_ns += 12 * SECOND
    child, grandchild = said(bench, keys[1]), said(bench, keys[2])
    assert child.startswith(
        f"whole in dram, but its parent {keys[0].hex()[:12]}… is in no tier: evicted from dram 12 s ago"
    )
    assert child.endswith("it is a hit again when that one is saved again")
    assert f"an ancestor, {keys[0].hex()[:12]}…" in grandchild
    assert said(bench, keys[0]).startswith("not a hit: in no tier: evicted from dram 12 s ago (the operator asked;")


def test_what_was_never_seen_is_said_to_be(benches: Any) -> None:
    """A key nobody ever named."""
    assert NEVER_SEEN in said(benches(), chain(1)[0])


def test_a_tier_that_is_down_is_named_with_its_reason(benches: Any) -> None:
    """In SSD alone, and that is unplugged."""
    bench = benches(**WITH_SSD)
    keys = saved(bench, 1)
    bench.operate(OperationKind.EVICT, Tier.DRAM)
    bench.post(TierChanged(Tier.SSD, False, "unplugged", bench.now_ns))
    assert said(bench, keys[0]) == "not a hit now: it is only in ssd (down: unplugged), and a hit again when that is up"


def test_a_block_being_saved_is_said_to_be(benches: Any) -> None:
    """Its copy out of the worker still runs."""
    bench, keys = benches(), chain(1)
    bench.save(keys)
    assert said(bench, keys[0]).startswith("not a hit now: it is being saved")
    bench.settle()


def test_a_namespace_being_reset_is_said_to_be(benches: Any) -> None:
    """Its block is still being read, so the reset is not over."""
    bench = benches()
    keys = saved(bench, 1)
    bench.load(keys)
    bench.post(NamespaceReset(1, 77, NAMESPACE, bench.now_ns))
    assert "is being reset" in said(bench, keys[0])
    bench.settle()


@pytest.mark.parametrize("shards", [(0, 1)])
def test_shards_are_told_apart(benches: Any, shards: tuple[int, ...]) -> None:
    """One shard has the block and another of the same namespace has not: both are said."""
    bench = benches()
    keys = saved(bench, 1)
    bench.state.index(NAMESPACE, shards[1])
    both = said(bench, keys[0]).split("; shard 1: ")
    assert both[0].startswith("shard 0: a hit")
    assert both[1].startswith("not a hit")
