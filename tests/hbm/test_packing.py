"""What a row path tells a daemon and hears from it, byte for byte as the protocol's page says."""

from __future__ import annotations

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.packing import pack_absents, pack_counts, pack_heat, pack_replayed, unpack_pages
from flexkv_tiers.hbm.reports import HeatEntry
from flexkv_tiers.hbm.requests import HotCount


def words(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


def test_pages_are_read_in_the_order_they_came():
    """Triples are grants, pairs are revokes."""
    change = unpack_pages(7, 3, words(1, 0, 512, 2, 1, 1 << 20), words(9, 1))
    assert change == PagesChange(7, 3, ((1, 0, 512), (2, 1, 1 << 20)), ((9, 1),))


@pytest.mark.parametrize(("granted", "revoked"), [(11, 0), (0, 4), (13, 8)])
def test_torn_pages_are_refused(granted, revoked):
    """Bytes that are not whole entries are a coded error, never half a version."""
    with pytest.raises(FlexKVError) as caught:
        unpack_pages(7, 3, bytes(granted), bytes(revoked))
    assert caught.value.code is ErrorCode.BAD_MESSAGE


def test_reports_are_packed_as_the_protocol_says():
    """Every field of a report, little endian; what counted nothing is left out, what counted too much is cut."""
    assert pack_absents([(7, (3, 1)), (8, (0, 0))]) == words(7, 3, 1, 8, 0, 0)
    assert pack_replayed([7, 1 << 31]) == words(7, 1 << 31)
    assert pack_heat([(7, HeatEntry(row=2, group=1, block=30, count=500))]) == words(7, 1, 30, 500)
    counts = [HotCount(7, 0, 5, 2), HotCount(7, 1, 0, 0), HotCount(7, 2, 1 << 40, 1)]
    assert pack_counts(counts) == words(7, 0, 5, 2, 7, 2, (1 << 32) - 1, 1)
