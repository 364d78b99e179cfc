"""Bursts of saves far beyond DRAM (`scripts/trials burst` runs them at any size)."""

from pathlib import Path

import pytest

from .burst import burst


def test_everything_stored_in_a_burst_is_there_afterwards(tmp_path: Path) -> None:
    """3 × DRAM at once, admission `always`: stored blocks are all read back right, the newest first."""
    figures = burst(tmp_path, dram_mib=8)
    assert figures["stored"] + figures["throttled"] + figures["refused"] == figures["blocks"]


def test_a_burst_with_no_time_to_wait_is_throttled_not_lost(tmp_path: Path) -> None:
    """With a deadline that ends before the disk has taken the burst, the rest is told to come again."""
    assert burst(tmp_path, dram_mib=8, deadline_s=0.05)["throttled"] > 0


def test_what_second_use_lets_go_has_its_eviction_told(tmp_path: Path) -> None:
    """Blocks seen once do not reach the SSD: those that vanish have a story that says so."""
    assert burst(tmp_path, dram_mib=8, admission="second-use")["vanished with their eviction told"] > 0


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("admission", ["always", "second-use"])
def test_a_burst_of_full_size(tmp_path: Path, admission: str) -> None:
    """The same with 128 MiB of DRAM."""
    burst(tmp_path, dram_mib=128, admission=admission, deadline_s=60)
