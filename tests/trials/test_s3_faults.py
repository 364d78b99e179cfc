"""A daemon through a few S3 faults (`scripts/trials s3-faults` runs them all, for longer)."""

from pathlib import Path

import pytest

from .s3_faults import OUTAGE, s3_faults
from .s3_frozen import s3_frozen


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_daemon_lives_through_every_s3_fault(tmp_path: Path) -> None:
    """All of them, one after the other, on one life of the daemon."""
    s3_faults(tmp_path, outage_s=10, fault_s=4)


def test_dram_is_served_while_s3_is_away_and_s3_comes_back(tmp_path: Path) -> None:
    """No wrong byte, no failed call on what lies in DRAM; the breaker opens and closes without a restart."""
    figures = s3_faults(tmp_path, outage_s=2, fault_s=1, faults=(OUTAGE, "another object's body"))
    assert figures["times the breaker opened"] >= 1


def test_loads_are_told_early_that_s3_is_frozen(tmp_path: Path) -> None:
    """With the default timeouts of 10 and 30 s, the first is told long before, later ones at once; DRAM serves on."""
    s3_frozen(tmp_path, quiet_s=1)
