"""One tenant floods a daemon that another uses (`scripts/trials tenants` runs it at any size, with a control)."""

from pathlib import Path

import pytest

from .tenants import quotas, shares, tenants


def test_quotas_keep_a_flood_from_its_neighbour(tmp_path: Path) -> None:
    """Equal quotas in DRAM and SSD: hits within 5 % of those alone, no quota exceeded at any sample."""
    quotas(tmp_path, requests=250, quota_blocks=64)


def test_a_flood_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """No quotas, DRAM is full: who uses less than half keeps it, and hits as in a DRAM of half the size."""
    shares(tmp_path, requests=250, quota_blocks=64)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_tenants_at_full_size(tmp_path: Path) -> None:
    """The same with thousands of requests, and the same flood in one tenant, which must do harm."""
    tenants(tmp_path)
