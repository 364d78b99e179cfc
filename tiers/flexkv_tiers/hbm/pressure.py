"""Who gives HBM pages up when others need them.

First resident requests go hot, those that free most, so that as few as possible do. When that is not enough hot buffers
shrink to the least a step needs, first those that miss least per page. Pure: `pool` does what this says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flexkv_tiers.hbm.rooms import PoolLimits
from flexkv_tiers.hbm.sizes import HotBuffer


@dataclass(frozen=True, slots=True)
class Relief:
    """What frees the pages that are wanted."""

    going_hot: dict[int, int] = field(default_factory=dict)
    """Resident request → pages it keeps as its hot buffer."""
    shrinking: dict[int, int] = field(default_factory=dict)
    """Hot request → pages its hot buffer gives."""


def relieve(
    lacking: int,
    residents: Mapping[int, int],
    buffers: Sequence[HotBuffer],
    limits: PoolLimits,
    longer_than: int = 0,
) -> Relief | None:
    """Frees `lacking` pages, or None where that cannot be.

    `residents` are resident requests with the pages that each could give up at once. Only those go hot that free
    more than `longer_than`: else the newcomer is the one that should be hot.
    """
    relief = Relief()
    frees = {request: given_up - limits.kept(given_up) for request, given_up in residents.items()}
    for request in sorted(frees, key=lambda request: (-frees[request], request)):
        if lacking <= 0 or frees[request] <= longer_than:
            break
        relief.going_hot[request] = limits.kept(residents[request])
        lacking -= frees[request]
    fresh = [HotBuffer(request, pages, 0) for request, pages in relief.going_hot.items()]
    for buffer in sorted([*buffers, *fresh], key=lambda buffer: (buffer.misses_per_page, buffer.request)):
        if lacking <= 0:
            break
        given = min(buffer.pages - limits.hot_pages_min, lacking)
        lacking -= given
        if buffer.request in relief.going_hot:
            relief.going_hot[buffer.request] -= given
        elif given:
            relief.shrinking[buffer.request] = given
    return None if lacking > 0 else relief
