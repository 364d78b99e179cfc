"""Two daemons on one bucket (`scripts/trials shared-bucket` runs it at full size)."""

from pathlib import Path

import pytest

from tests.tiers.s3_backing import shared_server

from .shared_bucket import CHAIN_BLOCKS, shared_bucket


def test_what_one_daemon_was_acknowledged_another_serves(tmp_path: Path) -> None:
    """Both write, also the same blocks, one is killed: each loads all of the other's, and every object is whole."""
    figures = shared_bucket(tmp_path, shared_server(), blocks=320, kills=1)
    assert figures["blocks acknowledged"] == 320 + CHAIN_BLOCKS


@pytest.mark.full
@pytest.mark.timeout(900)
def test_ten_thousand_blocks_of_two_daemons(tmp_path: Path) -> None:
    """The same at the size the promise is made for, with ten kills."""
    figures = shared_bucket(tmp_path, shared_server(), blocks=10_000, kills=10)
    assert figures["kills"] == 10
