"""The tier contract, on every store there is."""

from __future__ import annotations

import os
import threading

import pytest

from tests.tiers.backings import BACKINGS
from tests.tiers.contract import TierContract


@pytest.fixture(params=sorted(BACKINGS))
def backing(request, tmp_path, frames):
    """A store's backing; when the test is over, no thread and no descriptor of it is left."""
    threads, descriptors = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    backing = BACKINGS[request.param](tmp_path, frames.arena)
    yield backing
    backing.close()
    assert set(threading.enumerate()) == threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors  # older ones may go: mappings of earlier tests


class TestContract(TierContract):
    """Each promise, once per store."""
