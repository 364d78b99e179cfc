"""Presets: the overlaps and LRU hit rates they were made for, at every seed, in every group."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from flexkvd.selections import PRESETS, Selections, Workload
from flexkvd.selections.statistics import LAGS, Statistics, Summary
from tests.selections.recipe import lru_hit_rate, overlap, selected_by_recipe
from tests.selections.reference import HOT_SLOTS, LRU_HITS, OVERLAPS, ROUNDED, WITHIN

SEEDS = range(1, 7)
BUFFER_WITHIN = 0.03
"""What the order of a step's rows in the hot buffer may add to an exact LRU's hits, at half the slots a step."""


@cache
def summary_of(name: str, seed: int = 0) -> Summary:
    """One run of a preset, measured once."""
    return Statistics(HOT_SLOTS).add_all(Selections(Workload(preset=PRESETS[name], seed=seed))).summary()


def assert_published_figures(summary: Summary, name: str) -> None:
    assert [summary.overlaps[lag] for lag in LAGS] == pytest.approx(OVERLAPS[name], abs=WITHIN + ROUNDED)
    assert [summary.hit_rates[slots] for slots in HOT_SLOTS] == pytest.approx(LRU_HITS[name], abs=WITHIN)


def test_there_is_a_reference_for_every_preset():
    """No preset is left without figures it must meet."""
    assert list(PRESETS) == list(OVERLAPS) == list(LRU_HITS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_overlaps_and_hit_rates(name):
    """Overlap at lags 1, 8 and 32 and hits of an exact LRU at 2K to 8K slots are those of the table, ±0.01."""
    assert_published_figures(summary_of(name), name)


@pytest.mark.parametrize("name", PRESETS)
def test_the_hot_buffer_hits_no_less_than_the_published_lru(name):
    """Its order of a step's rows decides nothing where all slots are a step's, and adds hits where half of them are."""
    summary = summary_of(name)
    assert summary.buffer_hit_rates[2048] == pytest.approx(summary.hit_rates[2048], abs=0.001)
    for slots in HOT_SLOTS:
        assert -0.001 <= summary.buffer_hit_rates[slots] - summary.hit_rates[slots] <= BUFFER_WITHIN


def test_every_group_has_the_statistics_of_the_preset():
    """A group that takes most scores from its neighbour is as local in itself as the first one."""
    workload = Workload(groups=3, steps=60)
    statistics = Statistics(()).add_all(Selections(workload))
    for layer in statistics.layers:
        assert statistics.summary(layer).overlaps[1] == pytest.approx(OVERLAPS["mid"][0], abs=WITHIN + ROUNDED)


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_figures_at_other_seeds(name, seed):
    """A step resembles the 66 before it, so 200 say little more than three: chance moves figures by up to 0.008."""
    assert_published_figures(summary_of(name, seed), name)


@pytest.mark.full
@pytest.mark.parametrize("name", PRESETS)
def test_an_independent_program_has_the_same_figures(name):
    """The recipe in plain numpy, float64, and a LRU of single ids: the same in the mean of six seeds, ±0.005."""
    runs = [selected_by_recipe(PRESETS[name], seed) for seed in SEEDS]
    ours = [summary_of(name, seed) for seed in SEEDS]
    for lag in LAGS:
        theirs = np.mean([overlap(run, lag) for run in runs])
        assert np.mean([each.overlaps[lag] for each in ours]) == pytest.approx(theirs, abs=0.005)
    for slots in (4096, 8192):  # where the order of a step decides, and where it does not
        theirs = np.mean([lru_hit_rate(run, slots) for run in runs])
        assert np.mean([each.hit_rates[slots] for each in ours]) == pytest.approx(theirs, abs=0.005)
