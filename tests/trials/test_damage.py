"""Damaged records under a stopped and a running daemon (`scripts/trials damage` runs all of it by hand)."""

from pathlib import Path

import pytest

from tests.tiers.s3_backing import shared_server

from .damage import CUTS
from .damaged_store import damage

DAMAGES_MIN = 50
RUNNING = pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])


@pytest.mark.parametrize(
    ("tier", "running"),
    [
        ("ssd", False),
        ("s3", True),
        pytest.param("ssd", True, marks=pytest.mark.full),
        pytest.param("s3", False, marks=pytest.mark.full),
    ],
)
def test_a_damaged_record_is_a_miss_and_a_count(tmp_path: Path, tier: str, running: bool) -> None:
    """Flipped, zeroed, swapped, shifted or cut, in any field, chunk or padding: never served, counted once."""
    figures = damage(tmp_path, None if tier == "ssd" else shared_server(), running=running)
    assert figures["records damaged"] >= DAMAGES_MIN


@pytest.mark.full
@RUNNING
@pytest.mark.parametrize("name", CUTS)
def test_a_record_that_is_cut_off_anywhere_is_a_miss_and_a_count(tmp_path: Path, running: bool, name: str) -> None:
    """The record that a segment's cut goes through is never served; those before it are."""
    damage(tmp_path, running=running, cut=name, in_place=False)
