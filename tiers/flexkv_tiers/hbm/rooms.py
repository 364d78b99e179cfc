"""What one request holds in HBM, and what a decision does to it: the words of `pool`, `pressure` and `sizes`.

Everything in HBM is pages. A page holds one block of a request in every layer, or is part of a request's *hot buffer*:
as many slots in every layer as a block has ids. Holds data and its arithmetic; `pool` alone changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Stage(Enum):
    """Where a request's rows are read from."""

    LOADING = "loading"
    """Every block has a page, and a load still writes some of them."""
    RESIDENT = "resident"
    HOT = "hot"
    WIDENING = "widening"
    """HOT, while a load brings in everything that is not in pages; then RESIDENT."""


class Use(Enum):
    """What a copy does with a page. One block may have one of each: its old page saved, its new one loaded."""

    SAVE = "save"
    LOAD = "load"


class Admission(Enum):
    """What became of a request that wants room."""

    RESIDENT = "resident"
    HOT = "hot"
    WAIT = "wait"
    """Nothing was taken: ask again when a request has ended or a save has finished."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much there is: table rows, HBM pages, blocks of the longest request, pages of a hot buffer."""

    requests_max: int
    page_count: int
    blocks_max: int
    hot_pages_min: int = 1
    """As many as one step's selection needs, whatever it is."""
    hot_pages_max: int = 1
    """As many as the tables have slots for."""
    hot_pages_start: int | None = None
    """What a request that goes hot keeps where it can; by default the most it may have."""

    def __post_init__(self) -> None:
        assert 1 <= self.hot_pages_min <= self.hot_pages_first <= self.hot_pages_max

    @property
    def hot_pages_first(self) -> int:
        return self.hot_pages_max if self.hot_pages_start is None else self.hot_pages_start

    def kept(self, given_up: int) -> int:
        """Hot pages of a request that goes hot with so many pages to give up: half of them at most, if that is enough.

        Fewer than it gives up wherever that is more than `hot_pages_min`.
        """
        return min(self.hot_pages_first, max(self.hot_pages_min, given_up // 2))


@dataclass(slots=True)
class Room:
    """What one request holds."""

    row: int
    stage: Stage
    blocks: int
    """Blocks begun, from the first of the request."""
    pages: dict[int, int] = field(default_factory=dict)
    """Block → HBM page, of all blocks that have one."""
    hot: list[int] = field(default_factory=list)
    """HBM pages of the hot buffer, in the order of its slots; none unless HOT or WIDENING."""
    loading: tuple[int, ...] = ()
    """Blocks whose pages a load writes; empty unless LOADING or WIDENING."""
    covered: set[int] = field(default_factory=set)
    """Blocks all of whose chunks lie in DRAM frames granted to the request; these may leave their pages."""

    @property
    def is_hot(self) -> bool:
        """True while rows are read through the hot buffer."""
        return self.stage in {Stage.HOT, Stage.WIDENING}

    @property
    def without_page(self) -> list[int]:
        return [block for block in range(self.blocks) if block not in self.pages]

    @property
    def releasable(self) -> list[int]:
        return sorted(self.covered & self.pages.keys())

    @property
    def readable(self) -> dict[int, int]:
        """Block → HBM page, of the blocks that steps read from their pages."""
        hidden = self.loading if self.stage is Stage.WIDENING else ()
        return {block: page for block, page in self.pages.items() if block not in hidden}


@dataclass(frozen=True, slots=True)
class Change:
    """What a decision did to one request's pages: the tables must say so before the next step."""

    request: int
    taken: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    hot: tuple[int, ...] | None = None
    """The pages of its hot buffer from now on; None where these did not change."""
