"""The SSD log under SIGKILL and at size (`scripts/trials kill-log` and `many-blocks` run them at any length)."""

from pathlib import Path

import pytest

from .kill_log import kill_log
from .many_blocks import many_blocks


def test_a_log_killed_while_it_goes_round_serves_what_was_promised(tmp_path: Path) -> None:
    """Three kills while it seals, reclaims and rewrites: right bytes, nothing promised lost, all counted."""
    assert kill_log(tmp_path, cycles=3)["segments_reclaimed"] > 0


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_log_killed_two_hundred_times_serves_what_was_promised(tmp_path: Path) -> None:
    """Two hundred kills."""
    kill_log(tmp_path, cycles=200, seed=2)


def test_many_small_records_are_found_again_after_a_kill(tmp_path: Path) -> None:
    """Twenty thousand records: all found, and a thousand read at random are right."""
    many_blocks(tmp_path, blocks=20_000, reads=1_000)
