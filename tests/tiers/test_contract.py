"""The tier contract, on every store there is."""

from __future__ import annotations

import pytest

from tests.leaks import open_files, threads
from tests.tiers.backings import BACKINGS
from tests.tiers.contract import TierContract

MARKS = {"s3-alone": pytest.mark.full, "s3-compressed": pytest.mark.full}
"""Each shows little that is not shown for less: by "s3", where what is written one after the other is alone as well,
and by "ssd-compressed" with the tests of S3's codec."""


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in sorted(BACKINGS)])
def backing(request, tmp_path, frames):
    """A store's backing; when the test is over, no thread and no descriptor of it is left."""
    older = threads(), open_files()
    backing = BACKINGS[request.param](tmp_path, frames.arena)
    yield backing
    backing.close()
    assert not threads() - older[0]
    assert not open_files() - older[1]


class TestContract(TierContract):
    """Each promise, once per store."""
