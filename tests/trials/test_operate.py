"""Reloads, drains, stops and stuck loops under load (`scripts/trials operate` runs them at any length)."""

from pathlib import Path

import pytest

from .operate import operate


def test_what_was_acknowledged_survives_everything_an_operator_does(tmp_path: Path) -> None:
    """A reload, a drain, a stop and a stuck loop while blocks are saved to SSD and S3: all of them are there, right."""
    assert operate(tmp_path, rounds=1)["blocks acknowledged"] > 0


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_what_was_acknowledged_survives_many_rounds(tmp_path: Path) -> None:
    """Fifteen rounds."""
    operate(tmp_path, rounds=15)
