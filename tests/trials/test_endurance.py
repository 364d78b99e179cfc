"""A small SSD under the reuse of real coding sessions (`scripts/trials endurance` runs it at any length)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published import needs_traces

from .endurance import endurance, too_few


@needs_traces
def test_a_small_ssd_written_several_times_stays_within_its_room(tmp_path: Path) -> None:
    """Three times its capacity: the files never take more, what is read is right, and rewrites keep their limit."""
    figures = endurance(tmp_path, records=512, times=3, points_max=100)
    assert figures["samples of the room"] > 0


@pytest.mark.parametrize(("records", "is_small"), [(512, True), (5_000, False)])
def test_too_few_hits_are_told_with_their_limit(records: int, is_small: bool) -> None:
    """The sentence names what was allowed, and that a store of few records misses it in any case."""
    told = too_few(4.5, 2.0, "capacity", records, {"records let go": 3})
    assert "4.50 points below" in told
    assert "at most 2.0 are allowed" in told
    assert ("records are few" in told) == is_small


@pytest.mark.full
@pytest.mark.timeout(1800)
@needs_traces
def test_an_ssd_written_twenty_times_hits_nearly_what_an_ideal_store_hits(tmp_path: Path) -> None:
    """Twenty times its capacity: within two points of a plain LRU cache of the same size."""
    endurance(tmp_path)
