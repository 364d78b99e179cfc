"""Which request has which room in HBM: rows of the tables, HBM pages, and who gives pages up under pressure.

A request has one row of the tables from admission to its end. While it is RESIDENT all its rows lie in HBM pages, it
has no hot buffer, and nothing is copied. When pages run short the request that would free the most goes HOT between two
steps: blocks that DRAM frames cover leave their pages, some of which become its hot buffer, so going hot never fails
for want of room; their rows are fetched into it as they are selected. The blocks being written, and those not covered
yet, stay in pages. Pure: `requests` writes the tables, `pressure` and `sizes` choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.pages import PagePool
from flexkv_tiers.hbm.pressure import relieve
from flexkv_tiers.hbm.rooms import Admission, Change, PoolLimits, Room, Stage, Use
from flexkv_tiers.hbm.sizes import HotBuffer, HotSizes

GROWTH_PAGES = 1
"""Free pages kept back per admitted request, so that each can begin its next block whatever the others do."""

LENDING_SPARE_PAGES = 2
"""Free pages per admitted request that larger hot buffers leave: else the next blocks would soon send someone hot."""

WIDEN_SPARE_PAGES = 4
"""The same for widening, which costs a load of the whole request, and a loss if it goes hot again soon."""


class HotPool:
    """Room of all requests of one worker."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.pages = PagePool(limits.page_count)
        self.rooms: dict[int, Room] = {}
        self._sizes = HotSizes(limits)
        self._free_rows = list(reversed(range(limits.requests_max)))
        self._copies: dict[tuple[int, int, Use], int] = {}  # (request, block, use) → page, of every running copy
        self._misses: Mapping[int, int] = {}  # rows each hot request missed lately, as last told

    def admit(self, request: int, blocks: int, cached_blocks: int) -> tuple[Admission, list[Change]]:
        """Give a request a row and pages for `blocks` blocks; the first `cached_blocks` are in the cache.

        RESIDENT when pages for all can be had, be it by sending longer requests hot: then the cached blocks are
        to be loaded into theirs, and `load_ended` follows. HOT when only the other blocks, and the least of a hot
        buffer, get pages. Raises FlexKVError(BAD_ARGUMENT, LIMIT_EXCEEDED) for what can never be.
        """
        self._check_request(request, blocks, cached_blocks)
        if not self._free_rows:
            return Admission.WAIT, []
        headroom = GROWTH_PAGES * (len(self.rooms) + 1)
        could_free = max(0, cached_blocks - self.limits.kept(cached_blocks))  # were it the newcomer that is hot
        changes = self._free(blocks + headroom, longer_than=could_free, shrink=not could_free)
        if changes is not None:
            self._open(request, Stage.RESIDENT, blocks)
            changes.append(self._take(request, range(blocks)))
            self._start_load(request, range(cached_blocks))
            return Admission.RESIDENT, changes
        if could_free:
            changes = self._free(blocks - cached_blocks + self.limits.hot_pages_min + headroom)
        if changes is None:
            return Admission.WAIT, []
        self._open(request, Stage.HOT, blocks)
        changes.append(self._take(request, range(cached_blocks, blocks)))
        hot = min(self.limits.hot_pages_first, self.pages.free_count - headroom)
        return Admission.HOT, [*changes, self._resize(request, hot)]

    def grow(self, request: int, blocks: int) -> tuple[bool, list[Change]]:
        """Pages for the blocks up to `blocks`; False when they cannot be had now: this request must wait.

        Raises FlexKVError(LIMIT_EXCEEDED) beyond `blocks_max`.
        """
        room = self.rooms[request]
        if blocks <= room.blocks:
            return True, []
        self._check_blocks(blocks)
        changes = self._free(blocks - room.blocks)
        if changes is None:
            return False, []
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
            return True, [Change(request, taken=room.loading), self._resize(request, -len(room.hot))]
        missing = room.without_page
        if not missing:
            return True, []
        wanted = len(missing) + GROWTH_PAGES * len(self.rooms) - len(room.hot)
        changes = self._free(wanted, spared=request)
        if changes is None:
            return False, []
        left = self._resize(request, -len(room.hot))
        taken = self._take(request, missing)
        self._start_load(request, missing)
        return True, [*changes, left, taken]

    def steer(self, misses: Mapping[int, int]) -> tuple[int | None, list[Change]]:
        """Put free pages where rows are missed, and let hot buffers follow; `misses` are those since the last time.

        Returns a request that widens from now on, if there are pages for one; else hot buffers change.
        """
        self._misses = dict(misses)
        wider = self.choose_wider(misses)
        if wider is not None:
            self.widen(wider)
            return wider, []
        spare = max(0, self.pages.free_count - LENDING_SPARE_PAGES * len(self.rooms))
        moves = self._sizes.choose(self._buffers(), spare)
        return None, [self._resize(request, moves[request]) for request in sorted(moves, key=moves.__getitem__)]

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
            return [Change(request, taken=blocks), self._resize(request, -len(room.hot))]
        room.stage = Stage.HOT
        return [self._release(request, [*blocks, *(block for block in room.releasable if block not in blocks)])]

    def go_hot(self, request: int) -> Change | None:
        """Let a resident request's covered blocks leave their pages, now and whenever one becomes covered.

        None where these do not make a hot buffer and the others need the free pages: it stays resident.
        """
        room = self.rooms[request]
        assert room.stage is Stage.RESIDENT
        kept = self.limits.kept(len(self._free_at_once(room)))
        lacking = kept - len(self._free_at_once(room))
        if lacking > 0 and lacking > self.pages.free_count - GROWTH_PAGES * len(self.rooms):
            return None
        return self._go_hot(request, kept)

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
        for page in (*room.pages.values(), *room.hot):
            self.pages.give_back(page)
        self._free_rows.append(room.row)
        return room.row

    def check(self) -> None:
        """Recount everything: rows, pages, copies, stages."""
        rooms = self.rooms.values()
        rows = [*self._free_rows, *(room.row for room in rooms)]
        assert sorted(rows) == list(range(self.limits.requests_max)), "a row is lost or has two requests"
        held = [page for room in rooms for page in (*room.pages.values(), *room.hot)]
        self.pages.check(held, self._copies.values())
        for request, room in self.rooms.items():
            assert room.blocks <= self.limits.blocks_max
            assert all(0 <= block < room.blocks for block in (*room.pages, *room.covered))
            assert bool(room.loading) == (room.stage in {Stage.LOADING, Stage.WIDENING})
            least, most = (self.limits.hot_pages_min, self.limits.hot_pages_max) if room.is_hot else (0, 0)
            assert least <= len(room.hot) <= most, "a hot buffer has too few pages, too many, or nobody reads it"
            if room.stage is not Stage.HOT:
                assert len(room.pages) == room.blocks, "a resident request has a block outside its pages"
                assert all((request, block, Use.LOAD) in self._copies for block in room.loading)
            else:
                assert not room.releasable, "a hot request keeps a page that it could give up"

    def _free(
        self, wanted: int, *, longer_than: int = 0, spared: int | None = None, shrink: bool = True
    ) -> list[Change] | None:
        """Let `wanted` pages be free, by what `relieve` says; None, and nothing is changed, where that cannot be."""
        residents = {
            request: len(self._free_at_once(room))
            for request, room in self.rooms.items()
            if room.stage is Stage.RESIDENT and request != spared
        }
        buffers = [buffer for buffer in self._buffers() if buffer.request != spared] if shrink else []
        relief = relieve(wanted - self.pages.free_count, residents, buffers, self.limits, longer_than)
        if relief is None:
            return None
        gone = [self._go_hot(request, kept) for request, kept in relief.going_hot.items()]
        return [*gone, *(self._resize(request, -count) for request, count in relief.shrinking.items())]

    def _free_at_once(self, room: Room) -> list[int]:
        """Blocks whose pages are free at once when the request goes hot: those that no copy uses."""
        return [block for block in room.releasable if not self.pages.is_copied(room.pages[block])]

    def _buffers(self) -> list[HotBuffer]:
        return [
            HotBuffer(request, len(room.hot), self._misses.get(request, 0))
            for request, room in self.rooms.items()
            if room.is_hot
        ]

    def _open(self, request: int, stage: Stage, blocks: int) -> None:
        self.rooms[request] = Room(self._free_rows.pop(), stage, blocks)

    def _start_load(self, request: int, blocks: Sequence[int]) -> None:
        room = self.rooms[request]
        room.stage, room.loading = (Stage.LOADING if blocks else Stage.RESIDENT), tuple(blocks)
        for block in blocks:
            self.copy_started(request, block, Use.LOAD)

    def _go_hot(self, request: int, count: int) -> Change:
        """Keep `count` of the pages given up as the hot buffer; what is lacking comes from the free ones."""
        room = self.rooms[request]
        room.stage = Stage.HOT
        kept = self._free_at_once(room)[:count]
        room.hot = [room.pages.pop(block) for block in kept]
        released = self._release(request, room.releasable).released
        return Change(request, (), (*kept, *released), self._resize(request, count - len(kept)).hot)

    def _resize(self, request: int, more: int) -> Change:
        """The hot buffer has so many pages more, or fewer: it is the last that leave."""
        hot = self.rooms[request].hot
        for _ in range(-more):
            self.pages.give_back(hot.pop())
        hot += [self.pages.take() for _ in range(more)]
        return Change(request, hot=tuple(hot))

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
