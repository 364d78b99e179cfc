"""Scores of tokens as sums of random fields: static, drifting and white. No selection is made here.

Owns the fields' states and their only source of chance, a generator handed in. Called by `generator`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flexkvd.selections.workload import Preset

Floats = NDArray[np.float32]


def smoothed(raw: Floats, cluster: int) -> Floats:
    """Moving average of independent values over `cluster` tokens, scaled so that mean-free fields keep their variance.

    `raw` [N + cluster - 1] → [N]. The sum of n independent values has n times the variance of one, so sums are
    divided by √n. Running sums are float64: over a million tokens float32 would leave visible steps.
    """
    if cluster == 1:
        return raw
    sums = np.cumsum(raw, dtype=np.float64)
    runs = sums[cluster - 1 :].copy()
    runs[1:] -= sums[:-cluster]
    runs *= 1 / math.sqrt(cluster)
    return runs.astype(np.float32)


class ScoreField:
    """Scores of a fixed number of tokens, one set per step: static Gumbel, AR1 and white noise as a preset weighs them.

    `cluster` smooths the first two over that many neighbours. State: 8 bytes a token.
    """

    def __init__(self, preset: Preset, token_count: int, cluster: int, chance: np.random.Generator) -> None:
        self._preset = preset
        self._cluster = cluster
        self._chance = chance
        raw_count = token_count + cluster - 1
        gumbel = chance.gumbel(size=raw_count).astype(np.float32)
        mean = np.float32(np.euler_gamma)
        self._static: Floats = (smoothed(gumbel - mean, cluster) + mean) * np.float32(preset.static)
        self._drift: Floats = chance.standard_normal(raw_count, dtype=np.float32)
        """AR1 before smoothing: smoothing is linear, so what it gives is AR1 too."""

    def step(self) -> Floats:
        """Scores of the next step, float32 [token_count]: an array of the caller's own."""
        scores: Floats = self._chance.standard_normal(self._static.size, dtype=np.float32)
        scores *= np.float32(self._preset.noise)
        scores += self._static
        scores += smoothed(self._drift, self._cluster) * np.float32(self._preset.drift)
        self._advance()
        return scores

    def switch_topic(self, start: float, share: float) -> None:
        """Draw `share` of the AR1 field afresh: one stretch from `start` (both of the whole), round the end."""
        count = self._drift.size
        fresh = (int(start * count) + np.arange(int(share * count))) % count
        self._drift[fresh] = self._chance.standard_normal(fresh.size, dtype=np.float32)

    def _advance(self) -> None:
        correlation = self._preset.correlation
        fresh: Floats = self._chance.standard_normal(self._drift.size, dtype=np.float32)
        fresh *= np.float32(math.sqrt(1 - correlation**2))
        self._drift *= np.float32(correlation)
        self._drift += fresh
