"""Fixtures of the tier tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def frames():
    """A small arena, and frames of it on demand."""
    from tests.tiers.contract import Frames  # needs boto3, which a machine lent for its GPU may lack

    frames = Frames()
    yield frames
    frames.arena.close()
