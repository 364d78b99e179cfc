"""Fixtures of the tier tests."""

from __future__ import annotations

import pytest

from tests.tiers.contract import Frames


@pytest.fixture
def frames():
    """A small arena, and frames of it on demand."""
    frames = Frames()
    yield frames
    frames.arena.close()
