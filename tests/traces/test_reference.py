"""The readers against the published hit ratios of the published traces, where these are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexkv_py.traces import open_trace
from tests.published import MOONCAKE, WEKA, lru_hit_ratio, needs_traces


@pytest.fixture(scope="module")
def ids_of():
    """Ids of every request of a trace, read once."""
    read: dict[Path, list[list[int]]] = {}

    def ids(path: Path) -> list[list[int]]:
        if path not in read:
            read[path] = [request.ids for request in open_trace(path)]
        return read[path]

    return ids


@needs_traces
@pytest.mark.parametrize(
    ("path", "capacity", "percent_min", "percent_max"),
    [
        (MOONCAKE, 10_000, 20.8, 21.4),
        (MOONCAKE, 30_000, 32.3, 32.9),
        (MOONCAKE, None, 36.3, 36.9),
        pytest.param(WEKA, 10_000, 90.6, 91.7, marks=pytest.mark.full),
        pytest.param(WEKA, 30_000, 95.4, 96.0, marks=pytest.mark.full),
    ],
)
def test_a_plain_lru_reaches_the_published_ratio(ids_of, path, capacity, percent_min, percent_max):
    """What the readers hand out, a plain LRU turns into the published hit ratio."""
    assert percent_min <= 100 * lru_hit_ratio(ids_of(path), capacity) <= percent_max
