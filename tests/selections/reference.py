"""The published statistics that presets must have: K = 2,048 of N = 65,536, 200 steps, hits after the first quarter."""

from __future__ import annotations

HOT_SLOTS = (2048, 4096, 6144, 8192)

OVERLAPS = {
    "layer-0": (0.10, 0.09, 0.07),
    "poor": (0.30, 0.27, 0.22),
    "mid": (0.47, 0.44, 0.36),
    "high": (0.52, 0.48, 0.39),
    "good": (0.66, 0.60, 0.49),
    "easy": (0.91, 0.86, 0.75),
}
"""Share of a selection that was also in the one 1, 8 and 32 steps before."""

LRU_HITS = {
    "layer-0": (0.104, 0.159, 0.206, 0.249),
    "poor": (0.297, 0.457, 0.579, 0.667),
    "mid": (0.474, 0.699, 0.815, 0.874),
    "high": (0.522, 0.754, 0.862, 0.907),
    "good": (0.657, 0.888, 0.942, 0.958),
    "easy": (0.911, 0.991, 0.993, 0.993),
}
"""Hit rates of a LRU of HOT_SLOTS rows."""

WITHIN = 0.01
"""Half of what presets must keep to: chance moves one run of 200 steps by up to 0.008."""

ROUNDED = 0.005
"""Overlaps are published with two digits."""
