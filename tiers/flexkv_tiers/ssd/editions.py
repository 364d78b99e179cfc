"""Records of one block that lie in a directory more than once: written again, or moved when the daemon was killed.

Pure: footers in, places out. `recovery` is the only caller, and lets the last of each count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flexkv_tiers.ssd.format import Footer, Group

Place = tuple[int, int]
"""Which footer, which of its rows."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that groups of one key get different names: shards of a block have the same key."""


def editions(footers: Sequence[Footer]) -> list[list[Place]]:
    """The places of every block that is there more than once, in order of the footers, each at least two.

    A million records are looked at in 0.2 s: only names that occur twice are looked at one by one.
    """
    numbers: dict[Group, int] = {}
    names = [_names(footer, numbers) for footer in footers]
    ordered = np.sort(np.concatenate(names)) if names else np.zeros(0, np.uint64)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return []
    places: dict[tuple[Group, bytes], list[Place]] = {}
    for at, (footer, of_footer) in enumerate(zip(footers, names, strict=True)):
        for number in np.flatnonzero(np.isin(of_footer, repeated)).tolist():
            row = footer.rows[number]
            name = footer.groups[int(row["group"])], row["key"].tobytes()
            places.setdefault(name, []).append((at, number))
    return [each for each in places.values() if len(each) > 1]


def _names(footer: Footer, numbers: dict[Group, int]) -> NDArray[np.uint64]:
    """Eight bytes that are the same for the same block, and for others nearly never."""
    of_groups = np.array([numbers.setdefault(group, len(numbers)) for group in footer.groups], np.uint64)
    heads: NDArray[np.uint64] = np.ascontiguousarray(footer.rows["key"]).view(np.uint64)[::2]
    names: NDArray[np.uint64] = heads ^ of_groups[footer.rows["group"]] * _SPREAD
    return names
