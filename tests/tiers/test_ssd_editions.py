"""Which records of a directory are of one block, told from footers alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from xxhash import xxh3_128_digest

from flexkv_py.core.messages import Fault
from flexkv_py.keys import NAMESPACE_BYTES, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import CHECKSUM_BYTES
from flexkv_tiers.ssd.editions import editions
from flexkv_tiers.ssd.format import (
    ENTRY,
    PAGE_BYTES,
    DeadMap,
    Footer,
    Group,
    Layout,
    pack_footer,
    parse_footer,
    parse_trailer,
)

ONE, OTHER = NamespaceDigest(bytes(NAMESPACE_BYTES)), NamespaceDigest(bytes([1]) * NAMESPACE_BYTES)


def footer(*records: tuple[Group, bytes]) -> Footer:
    """Records of two pages, one behind the other."""
    groups = list(dict.fromkeys(group for group, _ in records))
    rows = [(3 + 2 * at, 2, 0, groups.index(group), key, bytes(16)) for at, (group, key) in enumerate(records)]
    return Footer(groups, [(4096,)], np.array(rows, ENTRY))


def slowly(footers: Sequence[Footer]) -> list[list[tuple[int, int]]]:
    """The same, one record after the other."""
    places: dict[object, list[tuple[int, int]]] = {}
    for at, each in enumerate(footers):
        for number, entry in enumerate(each.entries()):
            places.setdefault(entry.block, []).append((at, number))
    return [each for each in places.values() if len(each) > 1]


def test_shards_and_namespaces_of_one_key_are_other_blocks():
    """One key in four groups, and two keys that begin alike: nothing is there twice."""
    key, alike = bytes(range(16)), bytes(range(8)) + bytes(8)
    groups = [(ONE, 0), (ONE, 1), (OTHER, 0), (OTHER, 1)]
    assert editions([]) == []
    assert editions([footer(*((group, key) for group in groups)), footer((groups[0], alike)), footer()]) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_block_that_is_there_again_is_found(seed):
    """Whatever lies where, in one footer or in several: as a look at each record says."""
    chance = random.Random(seed)
    keys = [chance.randbytes(16) for _ in range(150)]
    groups = [(ONE, 0), (ONE, 1), (OTHER, 0)]
    footers = [
        footer(*((chance.choice(groups), chance.choice(keys)) for _ in range(chance.randrange(60)))) for _ in range(6)
    ]
    assert sorted(editions(footers)) == sorted(slowly(footers)) != []


def test_dropped_rows_are_left_out_at_once():
    """What the dead map says of single records holds for all of a footer together."""
    rows = footer(*(((ONE, 0), bytes([number]) * 16) for number in range(40))).rows
    dead = DeadMap(1)
    assert dead.alive(rows) is rows
    for page in (3, 17, 19, 81):
        dead.kill(page)
    assert dead.alive(rows)["page"].tolist() == [page for page in range(3, 83, 2) if not dead.is_dead(page)]


@pytest.mark.parametrize(
    ("at", "wrong"), [(0, 2), (4, 1), (8, 1), (10, 1), (0, 30)], ids=["page", "pages", "shape", "group", "end"]
)
def test_a_footer_whose_entries_cannot_be_right_is_corrupt(at, wrong):
    """An entry in another's pages, too short, of a shape or group that is not there, or behind the records' end."""
    layout, salt, row = Layout(32 * PAGE_BYTES), bytes(8), 32 + NAMESPACE_BYTES + 4 + 8 + 3 * ENTRY.itemsize
    entries = list(footer(*(((ONE, 0), bytes([number]) * 16) for number in range(4))).entries())
    _, raw = pack_footer(layout, salt, entries, is_clean=True)
    trailer = parse_trailer(raw[-PAGE_BYTES:], layout, salt)
    page = bytearray(raw[:PAGE_BYTES])
    assert len(parse_footer(page, trailer, layout, salt).rows) == 4
    page[row + at] = wrong
    page[-CHECKSUM_BYTES:] = xxh3_128_digest(page[:-CHECKSUM_BYTES])
    with pytest.raises(TierFault) as caught:
        parse_footer(page, trailer, layout, salt)
    assert caught.value.fault is Fault.CORRUPT
