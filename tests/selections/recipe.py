"""Selections from the published recipe alone, and a LRU of single ids: shares nothing with what is tested."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from flexkvd.selections import Preset

TOKENS, TOP_K, STEPS = 65_536, 2048, 200


def selected_by_recipe(preset: Preset, seed: int) -> list[list[int]]:
    """Selected positions of each step, in any order; everything in float64."""
    chance, room = np.random.default_rng(seed), TOKENS + STEPS
    gumbel, drift, selected = chance.gumbel(size=room), chance.standard_normal(room), []
    for count in range(TOKENS + 1, room + 1):
        noise = chance.standard_normal(count)
        scores = preset.static * gumbel[:count] + preset.drift * drift[:count] + preset.noise * noise
        scores[-128:] += 6 * np.linspace(0.3, 1, 128)
        scores[:4] += 20
        selected.append(np.argpartition(-scores, TOP_K)[:TOP_K].tolist())
        fresh = chance.standard_normal(room)
        drift = preset.correlation * drift + (1 - preset.correlation**2) ** 0.5 * fresh
    return selected


def overlap(selected: list[list[int]], lag: int) -> float:
    """Mean share of a selection that was also in the one `lag` steps before."""
    sets = [set(positions) for positions in selected]
    return float(np.mean([len(now & before) / TOP_K for now, before in zip(sets[lag:], sets, strict=False)]))


def lru_hit_rate(selected: list[list[int]], slots: int) -> float:
    """Hits after the first quarter of the steps: what a step finds is touched first, then the rest is loaded."""
    cached: OrderedDict[int, None] = OrderedDict()
    rates = []
    for positions in selected:
        found = [position for position in positions if position in cached]
        rates.append(len(found) / TOP_K)
        for position in found:
            cached.move_to_end(position)
        for position in positions:
            cached[position] = None
        while len(cached) > slots:
            cached.popitem(last=False)
    return float(np.mean(rates[len(rates) // 4 :]))
