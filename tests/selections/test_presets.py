"""Presets: the overlaps and LRU hit rates they were made for, at every seed, in every group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flexkvd.selections import PRESETS, Selections, Workload
from flexkvd.selections.statistics import LAGS, Statistics, lru_step
from tests.selections.reference import HOT_SLOTS, LRU_HITS, OVERLAPS, WITHIN


def test_there_is_a_reference_for_every_preset():
    """No preset is left without figures it must meet."""
    assert list(PRESETS) == list(OVERLAPS) == list(LRU_HITS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_overlaps_and_hit_rates(name):
    """Overlap at lags 1, 8 and 32 and hits of the exact LRU at 2K to 8K slots are those of the table, ±0.02."""
    summary = Statistics(HOT_SLOTS).add_all(Selections(Workload(preset=PRESETS[name]))).summary()
    assert [summary.overlaps[lag] for lag in LAGS] == pytest.approx(OVERLAPS[name], abs=WITHIN)
    assert [summary.hit_rates[slots] for slots in HOT_SLOTS] == pytest.approx(LRU_HITS[name], abs=WITHIN)


def test_every_group_has_the_statistics_of_the_preset():
    """A group that takes most scores from its neighbour is as local in itself as the first one."""
    workload = Workload(groups=3, steps=60)
    statistics = Statistics(()).add_all(Selections(workload))
    for layer in statistics.layers:
        assert statistics.summary(layer).overlaps[1] == pytest.approx(OVERLAPS["mid"][0], abs=WITHIN)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", PRESETS)
def test_only_ties_within_a_step_set_a_preset_apart(name, seed):
    """With what was loaded newer than what was hit, the other possible order of one step, all figures are within 0.01.

    The published rates do not say how a step's rows are ordered among themselves. At H = 2K and poor locality that
    decides 0.02: the engines' order gives 0.476 where the table has 0.457, this one 0.452.
    """
    selected = [each.positions for each in Selections(Workload(preset=PRESETS[name], seed=seed))]
    rates = [_hit_rate_loaded_last(selected, slots) for slots in HOT_SLOTS]
    assert rates == pytest.approx(LRU_HITS[name], abs=0.01)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_figures_at_other_seeds(name, seed):
    """Chance moves overlaps and hit rates by a few thousandths: 0.005 more than at the default seed is allowed."""
    workload = Workload(preset=PRESETS[name], seed=seed)
    summary = Statistics(HOT_SLOTS).add_all(Selections(workload)).summary()
    assert [summary.overlaps[lag] for lag in LAGS] == pytest.approx(OVERLAPS[name], abs=WITHIN)
    assert [summary.hit_rates[slots] for slots in HOT_SLOTS] == pytest.approx(LRU_HITS[name], abs=WITHIN + 0.005)


def _hit_rate_loaded_last(selected: Sequence[np.ndarray], slots: int) -> float:
    """A LRU in which a step's loaded rows are newer than its hits; hits after the first quarter of the steps."""
    order, marks, hits = np.full(slots, -1, np.int32), np.zeros(1 << 17, np.bool_), []
    for positions in selected:
        loaded = positions[~np.isin(positions, order)]
        order, count = lru_step(order, positions, marks)
        hits.append(count / positions.size)
        kept = order.size - positions.size
        order = np.concatenate([order[:kept], order[kept + loaded.size :], loaded])
    return float(np.mean(hits[len(hits) // 4 :]))
