"""Which request has which room in HBM: rows of the tables, HBM pages, and who gives pages up under pressure.

A request has one row of the tables from admission to its end, and with it a hot buffer, so going hot can never
fail for want of room. While it is RESIDENT all its rows lie in HBM pages and nothing is copied. When
pages run short the request that would free the most goes HOT between two steps: blocks that DRAM
frames cover leave their pages, their rows are fetched into the hot buffer as they are selected. The blocks being
written, and those not covered yet, stay in pages. Pure: `worker` writes the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.pages import PagePool

GROWTH_PAGES = 1
"""Free pages kept back per admitted request, so that each can begin its next block whatever the others do."""

WIDEN_SPARE_PAGES = 4
"""Free pages per admitted request that widening leaves: else the next blocks would send someone hot at once."""


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
    """How much there is: table rows (with a hot buffer each), HBM pages, blocks of the longest request."""

    requests_max: int
    page_count: int
    blocks_max: int


@dataclass(slots=True)
class Room:
    """What one request holds."""

    row: int
    stage: Stage
    blocks: int
    """Blocks begun, from the first of the request."""
    pages: dict[int, int] = field(default_factory=dict)
    """Block → HBM page, of all blocks that have one."""
    loading: tuple[int, ...] = ()
    """Blocks whose pages a load writes; empty unless LOADING or WIDENING."""
    covered: set[int] = field(default_factory=set)
    """Blocks all of whose chunks lie in DRAM frames granted to the request; these may leave their pages."""

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


class HotPool:
    """Room of all requests of one worker."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.pages = PagePool(limits.page_count)
        self.rooms: dict[int, Room] = {}
        self._free_rows = list(reversed(range(limits.requests_max)))
        self._copies: dict[tuple[int, int, Use], int] = {}  # (request, block, use) → page, of every running copy

    def admit(self, request: int, blocks: int, cached_blocks: int) -> tuple[Admission, list[Change]]:
        """Give a request a row and pages for `blocks` blocks; the first `cached_blocks` are in the cache.

        RESIDENT when pages for all can be had, be it by sending longer requests hot: then the cached blocks are
        to be loaded into theirs, and `load_ended` follows. HOT when only the other blocks get pages. Raises
        FlexKVError(BAD_ARGUMENT, LIMIT_EXCEEDED) for what can never be.
        """
        self._check_request(request, blocks, cached_blocks)
        if not self._free_rows:
            return Admission.WAIT, []
        headroom = GROWTH_PAGES * (len(self.rooms) + 1)
        for admission, first in ((Admission.RESIDENT, 0), (Admission.HOT, cached_blocks)):
            if admission is Admission.HOT and not cached_blocks:
                break
            longer_than = cached_blocks if admission is Admission.RESIDENT else 0
            victims = self._victims(blocks - first + headroom, longer_than)
            if victims is None:
                continue
            changes = [self._go_hot(victim) for victim in victims]
            self.rooms[request] = Room(self._free_rows.pop(), Stage.HOT, blocks)
            taken = self._take(request, range(first, blocks))
            if admission is Admission.RESIDENT:
                self._start_load(request, range(cached_blocks))
            return admission, [*changes, taken]
        return Admission.WAIT, []

    def grow(self, request: int, blocks: int) -> tuple[bool, list[Change]]:
        """Pages for the blocks up to `blocks`; False when they cannot be had now: this request must wait.

        Raises FlexKVError(LIMIT_EXCEEDED) beyond `blocks_max`.
        """
        room = self.rooms[request]
        if blocks <= room.blocks:
            return True, []
        self._check_blocks(blocks)
        victims = self._victims(blocks - room.blocks, 0)
        if victims is None:
            return False, []
        changes = [self._go_hot(victim) for victim in victims]
        fresh = range(room.blocks, blocks)
        room.blocks = blocks
        return True, [*changes, self._take(request, fresh)]

    def make_resident(self, request: int) -> tuple[bool, list[Change]]:
        """Pages for every block of a request that cannot step otherwise; False when they cannot be had now.

        What is `loading` then is to be loaded by the embedder, unless it is under way, and `load_ended` follows.
        """
        room = self.rooms[request]
        if room.stage is Stage.WIDENING:
            room.stage = Stage.LOADING
            return True, [Change(request, taken=room.loading)]
        missing = room.without_page
        victims = self._victims(len(missing) + GROWTH_PAGES * len(self.rooms), 0, spared=request)
        if victims is None:
            return False, []
        changes = [self._go_hot(victim) for victim in victims]
        taken = self._take(request, missing)
        self._start_load(request, missing)
        return True, [*changes, taken]

    def choose_wider(self, misses: Mapping[int, int]) -> int | None:
        """The hot request that gains most from being resident: most `misses` lately per page it would take.

        Only one whose pages are free without sending anyone hot, with room to spare for all to grow.
        """
        spare = self.pages.free_count - WIDEN_SPARE_PAGES * len(self.rooms)
        gains = {
            request: misses.get(request, 0) / len(room.without_page)
            for request, room in self.rooms.items()
            if room.stage is Stage.HOT and 0 < len(room.without_page) <= spare and misses.get(request, 0)
        }
        return max(gains, key=lambda request: (gains[request], -request), default=None)

    def widen(self, request: int) -> None:
        """Take pages for what a hot request has none for. It steps on as it is, until `load_ended`."""
        missing = self.rooms[request].without_page
        self._take(request, missing)
        self._start_load(request, missing)
        self.rooms[request].stage = Stage.WIDENING

    def load_ended(self, request: int, blocks: Iterable[int], *, whole: bool) -> list[Change]:
        """Nothing writes to these blocks' pages any more; `whole`: their rows are all there."""
        blocks = tuple(blocks)
        for block in blocks:
            self.copy_ended(request, block, Use.LOAD)
        room = self.rooms.get(request)
        if room is None:
            return []
        widening, room.stage, room.loading = room.stage is Stage.WIDENING, Stage.RESIDENT, ()
        if not widening:
            return []
        if whole:
            return [Change(request, taken=blocks)]
        room.stage = Stage.HOT
        return [self._release(request, [*blocks, *(block for block in room.releasable if block not in blocks)])]

    def go_hot(self, request: int) -> Change:
        """Let a resident request's covered blocks leave their pages, now and whenever one becomes covered."""
        assert self.rooms[request].stage is Stage.RESIDENT
        return self._go_hot(request)

    def cover(self, request: int, block: int) -> Change | None:
        """Every chunk of a whole block lies in granted frames; a hot request's block leaves its page at once."""
        room = self.rooms[request]
        assert block < room.blocks
        room.covered.add(block)
        if room.stage is Stage.HOT and block in room.pages:
            return self._release(request, [block])
        return None

    def uncover(self, request: int, block: int) -> None:
        """A chunk of the block was revoked: where the block is in a page it stays there."""
        self.rooms[request].covered.discard(block)

    def copy_started(self, request: int, block: int, use: Use) -> int:
        """A copy uses the block's page from now on. Returns the page; it is not reused before `copy_ended`."""
        page = self.rooms[request].pages[block]
        assert (request, block, use) not in self._copies
        self._copies[request, block, use] = page
        self.pages.copy_started(page)
        return page

    def copy_ended(self, request: int, block: int, use: Use) -> None:
        """The copy ended, whatever became of the request."""
        self.pages.copy_ended(self._copies.pop((request, block, use)))

    def copying(self, request: int, use: Use) -> set[int]:
        """Blocks of the request, which may be gone, whose pages such a copy uses."""
        return {block for owner, block, of in self._copies if (owner, of) == (request, use)}

    def is_fenced(self, request: int) -> bool:
        """True while a copy still uses a page of this request, which may itself be gone."""
        return any(owner == request for owner, _, _ in self._copies)

    def remove(self, request: int) -> int:
        """End a request: its row is free, its pages as soon as no copy reads them. Returns the row."""
        room = self.rooms.pop(request)
        for page in room.pages.values():
            self.pages.give_back(page)
        self._free_rows.append(room.row)
        return room.row

    def check(self) -> None:
        """Recount everything: rows, pages, copies, stages."""
        rooms = self.rooms.values()
        rows = [*self._free_rows, *(room.row for room in rooms)]
        assert sorted(rows) == list(range(self.limits.requests_max)), "a row is lost or has two requests"
        held = [page for room in rooms for page in room.pages.values()]
        self.pages.check(held, self._copies.values())
        for request, room in self.rooms.items():
            assert room.blocks <= self.limits.blocks_max
            assert all(0 <= block < room.blocks for block in (*room.pages, *room.covered))
            assert bool(room.loading) == (room.stage in {Stage.LOADING, Stage.WIDENING})
            if room.stage is not Stage.HOT:
                assert len(room.pages) == room.blocks, "a resident request has a block outside its pages"
                assert all((request, block, Use.LOAD) in self._copies for block in room.loading)
            else:
                assert not room.releasable, "a hot request keeps a page that it could give up"

    def _victims(self, wanted: int, longer_than: int, spared: int | None = None) -> list[int] | None:
        """Resident requests to send hot until `wanted` pages are free, those that free most first; None if too few.

        Only those that free more than `longer_than` pages: else the newcomer is the one that should be hot.
        """
        free, victims = self.pages.free_count, []
        sizes = {
            request: self._yield_of(request) for request, room in self.rooms.items() if room.stage is Stage.RESIDENT
        }
        for request in sorted(sizes, key=lambda request: (-sizes[request], request)):
            if free >= wanted:
                break
            if request != spared and sizes[request] > longer_than:
                victims.append(request)
                free += sizes[request]
        return victims if free >= wanted else None

    def _yield_of(self, request: int) -> int:
        """Pages that are free at once when the request goes hot: those that no copy reads."""
        room = self.rooms[request]
        return sum((request, block, Use.SAVE) not in self._copies for block in room.releasable)

    def _start_load(self, request: int, blocks: Sequence[int]) -> None:
        room = self.rooms[request]
        room.stage, room.loading = (Stage.LOADING if blocks else Stage.RESIDENT), tuple(blocks)
        for block in blocks:
            self.copy_started(request, block, Use.LOAD)

    def _go_hot(self, request: int) -> Change:
        room = self.rooms[request]
        room.stage = Stage.HOT
        return self._release(request, room.releasable)

    def _take(self, request: int, blocks: Sequence[int]) -> Change:
        pages = self.rooms[request].pages
        for block in blocks:
            pages[block] = self.pages.take()
        return Change(request, taken=tuple(blocks))

    def _release(self, request: int, blocks: list[int]) -> Change:
        room = self.rooms[request]
        for block in blocks:
            self.pages.give_back(room.pages.pop(block))
        return Change(request, released=tuple(blocks))

    def _check_request(self, request: int, blocks: int, cached_blocks: int) -> None:
        if request in self.rooms:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT, f"request {request} is attached already: detach it first, or take a free number"
            )
        if self.is_fenced(request):
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"request {request} has ended, but a copy still uses its pages: take another number",
            )
        if not 0 <= cached_blocks <= blocks:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"{cached_blocks} cached blocks of {blocks}: use 0 to {blocks}")
        self._check_blocks(blocks)

    def _check_blocks(self, blocks: int) -> None:
        if not 1 <= blocks <= self.limits.blocks_max:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"a request of {blocks} blocks: the tables hold 1 to {self.limits.blocks_max}, make blocks_max larger",
            )
