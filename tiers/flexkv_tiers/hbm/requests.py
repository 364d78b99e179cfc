"""The row-path requests of a worker between steps: who is attached, where its rows are, what is to be sent.

Owns what happens between two steps: requests come and go, prefill and loads write pages, blocks are saved, the
daemon's versions of the page tables take effect. Ties the deciding parts (`pool`, `newest`, `granted`, `replay`) to
the tables on the device. The step itself is `worker`'s, which builds on this. Nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.checks import check_attached, check_load_ended, check_request, check_save_ended
from flexkv_tiers.hbm.granted import GrantedPages, PagesChange
from flexkv_tiers.hbm.newest import NewestBlocks, SaveOrder, SaveOutcome
from flexkv_tiers.hbm.pool import HotPool
from flexkv_tiers.hbm.replay import REPLAYS_MAX, Part, Replays, StepState
from flexkv_tiers.hbm.reports import HeatEntry, HeatReports
from flexkv_tiers.hbm.rooms import Admission, Change, PoolLimits, Stage, Use
from flexkv_tiers.hbm.steps import StepTables


@dataclass(frozen=True, slots=True)
class HotCount:
    """Rows that one group selected through the hot buffer: found there, and fetched."""

    request: int
    group: int
    hits: int
    misses: int


@dataclass(slots=True)
class Attached:
    """What is known of one request beside its room."""

    newest: NewestBlocks
    granted: GrantedPages
    replays: Replays
    failed: bool = False
    """The last run of its step does not count: the device takes the request for padding until told otherwise."""


class Requests:
    """All row-path requests of one worker, as they are between steps."""

    def __init__(
        self,
        tables: StepTables,
        page_count: int,
        chunk_count: int,
        replays_max: int = REPLAYS_MAX,
        hot_pages_start: int | None = None,
    ) -> None:
        """`page_count` is at most what the tables were made with, `chunk_count` the geometry's.

        `hot_pages_start` is what a hot buffer has at first, where it can; by default all that the tables allow.
        Raises FlexKVError(BAD_ARGUMENT) for what no hot buffer can have.
        """
        limits = tables.limits
        self.tables = tables
        least, most = tables.hot_pages_min, tables.hot_pages_max
        if not least <= (most if hot_pages_start is None else hot_pages_start) <= most:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"hot buffers of {hot_pages_start} pages at first: use {least} (one step's selection) to {most} (H)",
            )
        self.pool = HotPool(
            PoolLimits(limits.requests_max, page_count, limits.blocks_max, least, most, hot_pages_start)
        )
        self.reports = HeatReports(tables.heat, list(tables.groups), tables.copies.fence)
        self._chunk_count = chunk_count
        self._replays_max = replays_max
        self._tokens_per_block = next(iter(tables.groups.values())).shape.tokens_per_block
        self._attached: dict[int, Attached] = {}
        self._batch: list[int] | None = None  # requests of the step under way, in batch order; None between steps
        self._counted: set[int] = set()  # whose selections the heat report under way has, in the life they have now
        self._replayed: list[int] = []  # of attached requests, those whose replay succeeded and was not told yet
        self._acks: deque[tuple[int, int, Callable[[], bool]]] = deque()

    def attach(self, request: int, tokens: int, cached_blocks: int = 0) -> Admission:
        """Room for a request of `tokens` tokens (its prompt), the first `cached_blocks` blocks being in the cache.

        RESIDENT: HBM pages for all; load the cached blocks into theirs (`loading`, then `load_ended`) and prefill
        the rest into theirs. HOT: pages for the rest only; cached rows are fetched as they are selected. WAIT:
        nothing was taken. Raises FlexKVError(BAD_ARGUMENT, LIMIT_EXCEEDED) for what can never be.
        """
        self._check_between_steps()
        check_request(request, tokens, cached_blocks)
        blocks = -(-tokens // self._tokens_per_block)
        admission, changes = self.pool.admit(request, blocks, cached_blocks)
        if admission is not Admission.WAIT:
            cached = cached_blocks * self._tokens_per_block
            self.tables.open(self.pool.rooms[request].row, cached)
            self._attached[request] = Attached(
                NewestBlocks(cached, cached_blocks, self._tokens_per_block),
                GrantedPages(request, self.tables.limits.blocks_max, self._chunk_count),
                Replays(self._replays_max),
            )
            self._write(changes)
        return admission

    def prefilled(self, request: int, tokens: int) -> None:
        """The engine has written the rows of the next `tokens` tokens into the request's pages, and they count."""
        self._check_between_steps()
        attached, room = self._of(request), self.pool.rooms[request]
        if tokens < 0 or attached.newest.length + tokens > room.blocks * self._tokens_per_block:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"request {request} has no pages for {tokens} more tokens: attach with its length",
            )
        self._lengthen(request, tokens)
        self.tables.set_length(room.row, attached.newest.length)

    def pages(self, request: int) -> dict[int, int]:
        """Block → HBM page of the blocks that lie in pages now."""
        self._of(request)
        return dict(self.pool.rooms[request].pages)

    def length(self, request: int) -> int:
        """Tokens of the request whose rows count."""
        return self._of(request).newest.length

    def loading(self, request: int) -> dict[int, int]:
        """Block → HBM page of what is to be loaded, or is under way."""
        self._of(request)
        room = self.pool.rooms[request]
        return {block: room.pages[block] for block in room.loading}

    def load_ended(self, request: int, blocks: Iterable[int], *, whole: bool) -> bool:
        """Nothing writes to these blocks' pages any more, all that were `loading`; `whole`: their rows are all there.

        False where a request cannot go on without them: one that was only attached until now may have them computed
        before its first step, any other is to be detached. One that was being widened stays hot, unless its step was
        given up meanwhile. To be told for a detached request, too. Raises FlexKVError(BAD_ARGUMENT) for other blocks.
        """
        self._check_between_steps()
        blocks = list(blocks)
        check_load_ended(request, blocks, self.pool.copying(request, Use.LOAD))
        self._write(self.pool.load_ended(request, blocks, whole=whole))
        attached = self._attached.get(request)
        if attached is None:
            return True
        if whole and attached.replays.state is StepState.GIVEN_UP:
            attached.replays.made_resident()
        return whole or self.pool.rooms[request].is_hot

    def go_hot(self, request: int) -> bool:
        """Let a resident request read through a hot buffer from the next step on, without any pressure.

        False where there are no pages for that buffer: it stays resident.
        """
        self._check_between_steps()
        self._of(request)
        if self.pool.rooms[request].stage is Stage.RESIDENT:
            change = self.pool.go_hot(request)
            self._write([change] if change is not None else [])
        return self.pool.rooms[request].is_hot

    def steer(self, counts: Sequence[HotCount]) -> int | None:
        """Let HBM follow what is missed; `counts` are those since the last time (`take_counts`).

        The hot request that misses most per page this takes becomes resident, if pages are free for it: returned, its
        `loading` is to be loaded while it goes on. Else pages of hot buffers go to where misses per slot are highest.
        """
        self._check_between_steps()
        misses: dict[int, int] = {}
        for count in counts:
            misses[count.request] = misses.get(count.request, 0) + count.misses
        wider, changes = self.pool.steer(misses)
        self._write(changes)
        return wider

    def detach(self, request: int, *, save: bool) -> list[SaveOrder]:
        """End a request, finished or preempted (`save` its full blocks) or cancelled. Its number may be reused when
        `pool.is_fenced` is over. Returns what is still to be saved; pages are free when copies have ended.
        """
        self._check_between_steps()
        orders: list[SaveOrder] = []
        attached = self._of(request)
        if save:
            orders += self._orders(request, attached.newest.take_all())
        row = self.pool.remove(request)
        self.tables.close(row)
        del self._attached[request]
        self._replayed = [each for each in self._replayed if each != request]
        self._forget_life(request)
        return orders

    def take_saves(self) -> list[SaveOrder]:
        """Full blocks to be saved now, a few per request, beside the steps."""
        orders: list[SaveOrder] = []
        for request, attached in self._attached.items():
            orders += self._orders(request, attached.newest.take_due())
        return orders

    def save_ended(self, request: int, block: int, outcome: SaveOutcome) -> None:
        """The save reads the page no more. To be told for a detached request, too. Raises FlexKVError(BAD_ARGUMENT)."""
        check_save_ended(request, block, self.pool.copying(request, Use.SAVE))
        self.pool.copy_ended(request, block, Use.SAVE)
        if request in self._attached:
            self._attached[request].newest.ended(block, outcome)

    def receive(self, change: PagesChange) -> None:
        """Hold a version until `switch`; ranks that decode together switch on the same step.

        Raises FlexKVError(BAD_ARGUMENT) for a request that is not attached, BAD_MESSAGE for pages it cannot have.
        """
        check_attached(change.request, list(self._attached))
        self._attached[change.request].granted.receive(change, self.tables.requests.segments.frame_count)

    def joined(self, request: int, version: int) -> None:
        """The daemon has attached the request to a table of this version, which other ranks may have brought on."""
        self._of(request).granted.version = version

    def disown(self, request: int) -> None:
        """The daemon that granted this request's frames is gone, and it is to be attached anew: nothing is granted.

        Until then it may go on reading the old frames, which stay as they are. What its step waits for is asked again.
        """
        self._check_between_steps()
        attached = self._of(request)
        self._put_into_effect(attached, PagesChange(request, 0, (), tuple(attached.granted.disown())))
        attached.replays.ask_again()
        self.tables.heat[:, self._row(request)] = 0  # of blocks that may never be attached to the next daemon
        self._forget_life(request)

    def map_arena(self, segments: Sequence[memoryview | bytearray | mmap], segment_bytes: int) -> None:
        """Read the frames of this daemon, whose arena is mapped in these segments (host memory).

        Raises FlexKVError(BAD_ARGUMENT) while a request is granted frames of another arena.
        """
        self._check_nothing_granted()
        self.tables.requests.segments.map(segments, segment_bytes)

    def point_arena(self, addresses: Sequence[int], segment_bytes: int) -> None:
        """The same for a device, which sees the segments at these addresses."""
        self._check_nothing_granted()
        self.tables.requests.segments.point(addresses, segment_bytes)

    def received(self, requests: Sequence[int]) -> list[int]:
        """Newest version received per request: what `agree_versions` is told."""
        return [self._of(request).granted.received for request in requests]

    def switch(self, versions: Mapping[int, int] | None = None) -> None:
        """Put held versions into effect, up to the version named per request; all of them without `versions`."""
        self._check_between_steps()
        ended = self.tables.copies.fence()
        for request, attached in self._attached.items():
            upto = attached.granted.received if versions is None else versions.get(request, attached.granted.version)
            for change in attached.granted.switch(upto):
                self._put_into_effect(attached, change)
                self._acks.append((request, change.version, ended))

    def apply(self, change: PagesChange) -> None:
        """`receive` and `switch` in one, for a worker that decodes alone."""
        self.receive(change)
        self.switch()

    def take_acks(self) -> list[tuple[int, int]]:
        """(request, version) that no step under way can see the predecessor of; to be sent to the daemon."""
        taken = []
        while self._acks and self._acks[0][2]():
            request, version, _ = self._acks.popleft()
            taken.append((request, version))
        return taken

    def take_asks(self) -> list[tuple[int, Part]]:
        """Absent parts to report to the daemon at once; it keeps them pinned until the step is done."""
        return [
            (request, part) for request, attached in self._attached.items() for part in attached.replays.take_asks()
        ]

    def take_replayed(self) -> list[int]:
        """Requests whose step succeeded after replays: the daemon need not pin what they asked for any longer."""
        replayed, self._replayed = self._replayed, []
        return replayed

    def take_counts(self) -> list[HotCount]:
        """Hits and misses per request and group since the last call. Waits for a device: call it rarely."""
        self._check_between_steps()
        counts = []
        for request in self._attached:
            for group, hits, misses in self.tables.take_counts(self._row(request)):
                counts.append(HotCount(request, group, hits, misses))
        return counts

    def take_heat(self) -> list[tuple[int, HeatEntry]]:
        """(request, entry) of the report that has landed; starts the next. Call every `report_steps` steps."""
        self._check_between_steps()
        counted = {self._row(request): request for request in self._counted if request in self._attached}
        entries = [(counted[entry.row], entry) for entry in self.reports.take() if entry.row in counted]
        if not self.reports.is_under_way:
            self.reports.start()
            self._counted = set(self._attached)
        return entries

    def warm(self, request: int, group: int, ids: Sequence[int]) -> int:
        """Fetch rows into the hot buffer before the first step: the last selections of prefill, newest last.

        Those not in granted frames, or in pages anyway, are left out; all, while the request's step is to run again.
        Returns how many rows were fetched.
        """
        self._check_between_steps()
        attached, room = self._of(request), self.pool.rooms[request]
        shape = self.tables.group_of(group).shape
        there = [
            number
            for number in ids
            if (block := number // shape.ids_per_block) not in room.pages
            and (block, shape.chunk) in attached.granted.frames
        ]
        if attached.failed:
            return 0
        self.tables.warm(room.row, group, there)
        return len(there)

    def check(self) -> None:
        """Recount every account, and compare the device's tables with what was decided."""
        self.pool.check()
        assert self._attached.keys() == self.pool.rooms.keys()
        for request, attached in self._attached.items():
            room = self.pool.rooms[request]
            self.tables.check(room.row, attached.newest.length, room.readable, attached.granted.frames, room.hot)
            full = range(attached.newest.full_blocks)
            covered = {block for block in full if attached.granted.is_covered(block)}
            assert covered == room.covered, "what may leave its page is not what the daemon's frames cover"

    def _put_into_effect(self, attached: Attached, change: PagesChange) -> None:
        request = change.request
        self.tables.change_pages(self.pool.rooms[request].row, change)
        attached.replays.revoked(change.revoked)
        attached.replays.granted((block, chunk) for block, chunk, _ in change.granted)
        for block in dict.fromkeys([*(block for block, _ in change.revoked), *(grant[0] for grant in change.granted)]):
            if not attached.granted.is_covered(block):
                self.pool.uncover(request, block)
            elif block < attached.newest.full_blocks:
                self._cover(request, block)

    def _lengthen(self, request: int, tokens: int) -> None:
        """So many more tokens count. Others may have saved the same block before: then it is granted already."""
        attached = self._attached[request]
        full = attached.newest.full_blocks
        attached.newest.commit(tokens)
        for block in range(full, attached.newest.full_blocks):
            if attached.granted.is_covered(block):
                self._cover(request, block)

    def _cover(self, request: int, block: int) -> None:
        left = self.pool.cover(request, block)
        if left is not None:
            self._write([left])

    def _write(self, changes: Sequence[Change]) -> None:
        """Put decisions of the pool into the tables; between steps, so that the next step sees them whole."""
        for change in changes:
            room = self.pool.rooms[change.request]
            self.tables.resident.leave(room.row, change.released)
            self._attached[change.request].newest.left(change.released)
            if change.hot is not None:
                self.tables.resize(room.row, change.hot)
            self.tables.resident.place(room.row, change.taken, [room.pages[block] for block in change.taken])

    def _orders(self, request: int, blocks: Sequence[int]) -> list[SaveOrder]:
        return [SaveOrder(request, block, self.pool.copy_started(request, block, Use.SAVE)) for block in blocks]

    def _forget_life(self, request: int) -> None:
        """Nothing of it is told of the next life of this number: versions and heat would be taken for that one's."""
        self._counted.discard(request)
        self._acks = deque(each for each in self._acks if each[0] != request)

    def _check_nothing_granted(self) -> None:
        self._check_between_steps()
        for request, attached in self._attached.items():
            if attached.granted.received:
                raise FlexKVError(
                    ErrorCode.BAD_ARGUMENT,
                    f"request {request} reads frames of another arena, and all requests read of one: disown it first",
                )

    def _of(self, request: int) -> Attached:
        if request not in self._attached:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"request {request} is not attached: attach it first")
        return self._attached[request]

    def _row(self, request: int) -> int:
        return self.pool.rooms[request].row

    def _check_between_steps(self) -> None:
        if self._batch is not None:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, "a step is under way: collect and commit it, or abort it, first")
