"""`RowPath`: what a worker embeds to decode with more KV than its HBM holds.

Between steps: `attach`, `prefilled`, `apply`, `take_acks`, `take_asks`, `take_saves`, `detach`. In a step: `begin`,
then per layer group `plan` and per layer `wait`, then `collect` and `commit`. Speaks to no daemon: what is to be
sent is handed out, what arrives is handed in, and nothing here waits. Owns the order of these calls and ties the
deciding parts (`pool`, `newest`, `granted`, `replay`) to the tables on the device. Life of a request:
docs/row-path.md, "In a worker". One thread calls all methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.checks import check_attached
from flexkv_tiers.hbm.granted import GrantedPages, PagesChange
from flexkv_tiers.hbm.graph import StepGraphs
from flexkv_tiers.hbm.newest import NewestBlocks, SaveOutcome
from flexkv_tiers.hbm.pool import Admission, Change, HotPool, PoolLimits, Stage
from flexkv_tiers.hbm.replay import REPLAYS_MAX, Part, Replays, StepState, Verdict
from flexkv_tiers.hbm.reports import HeatEntry, HeatReports
from flexkv_tiers.hbm.steps import RowRun, StepTables


class Outcome(Enum):
    """What became of a request's step."""

    DONE = "done"
    REPLAY = "replay"
    """Discard the sample; the same step runs again, in the first batch the request takes part in."""
    LOAD = "load"
    """Discard the sample; load `loading(request)` into its pages, say `load_ended`, then the step runs again."""
    HAND_BACK = "hand_back"
    """Discard the sample and detach: the request is to be recomputed."""


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Save this block from this HBM page, then say `save_ended`."""

    request: int
    block: int
    page: int


@dataclass(slots=True)
class _Attached:
    newest: NewestBlocks
    granted: GrantedPages
    replays: Replays
    failed: bool = False
    """The last run of its step does not count: the device takes the request for padding until told otherwise."""


class RowPath:
    """All row-path requests of one worker."""

    def __init__(self, tables: StepTables, page_count: int, chunk_count: int, replays_max: int = REPLAYS_MAX) -> None:
        """`page_count` is what the tables were made with, `chunk_count` the geometry's."""
        limits = tables.limits
        self.tables = tables
        self.pool = HotPool(PoolLimits(limits.requests_max, page_count, limits.blocks_max))
        self.reports = HeatReports(tables.heat, list(tables.groups), tables.copies.fence)
        self._chunk_count = chunk_count
        self._replays_max = replays_max
        self._tokens_per_block = next(iter(tables.groups.values())).shape.tokens_per_block
        self._attached: dict[int, _Attached] = {}
        self._batch: list[int] | None = None  # requests of the step under way, in batch order; None between steps
        self._collected: list[RowRun] | None = None
        self._capturing = False
        self._acks: deque[tuple[int, int, Callable[[], bool]]] = deque()

    # Between steps: requests come and go

    def attach(self, request: int, tokens: int, cached_blocks: int = 0) -> Admission:
        """Room for a request of `tokens` tokens (its prompt), the first `cached_blocks` blocks being in the cache.

        RESIDENT: HBM pages for all; load the cached blocks into theirs (`loading`, then `load_ended`) and prefill
        the rest into theirs. HOT: pages for the rest only; cached rows are fetched as they are selected. WAIT:
        nothing was taken. Raises FlexKVError(BAD_ARGUMENT, LIMIT_EXCEEDED) for what can never be.
        """
        self._check_between_steps()
        blocks = -(-tokens // self._tokens_per_block)
        admission, changes = self.pool.admit(request, blocks, cached_blocks)
        if admission is not Admission.WAIT:
            cached = cached_blocks * self._tokens_per_block
            self.tables.open(self.pool.rooms[request].row, cached)
            self._attached[request] = _Attached(
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
        attached.newest.commit(tokens)
        self.tables.set_length(room.row, attached.newest.length)

    def pages(self, request: int) -> dict[int, int]:
        """Block → HBM page of the blocks that lie in pages now."""
        self._of(request)
        return dict(self.pool.rooms[request].pages)

    def length(self, request: int) -> int:
        """Tokens of the request whose rows count."""
        return self._of(request).newest.length

    def loading(self, request: int) -> dict[int, int]:
        """Block → HBM page of what is to be loaded before the request may step."""
        room = self.pool.rooms[request]
        return {block: room.pages[block] for block in room.loading}

    def load_ended(self, request: int, blocks: Iterable[int], *, whole: bool) -> None:
        """Nothing writes to these blocks' pages any more; `whole`: their rows are all there.

        Without them the engine computes the rows itself, or detaches. To be told for a detached request, too.
        """
        self.pool.load_ended(request, blocks)
        attached = self._attached.get(request)
        if attached is not None and whole and attached.replays.state is StepState.GIVEN_UP:
            attached.replays.made_resident()

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
        return orders

    def take_saves(self) -> list[SaveOrder]:
        """Full blocks to be saved now, a few per request, beside the steps."""
        orders: list[SaveOrder] = []
        for request, attached in self._attached.items():
            orders += self._orders(request, attached.newest.take_due())
        return orders

    def save_ended(self, request: int, block: int, outcome: SaveOutcome) -> None:
        """The save reads the page no more. To be told for a detached request, too."""
        self.pool.copy_ended(request, block)
        if request in self._attached:
            self._attached[request].newest.ended(block, outcome)

    # Between steps: the daemon's pages

    def receive(self, change: PagesChange) -> None:
        """Hold a version until `switch`; ranks that decode together switch on the same step.

        Raises FlexKVError(BAD_ARGUMENT) for a request that is not attached, BAD_MESSAGE for pages it cannot have.
        """
        check_attached(change.request, list(self._attached))
        attached = self._attached[change.request]
        attached.granted.receive(change, attached.newest.full_blocks)

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

    def refuse(self, request: int, parts: Sequence[Part]) -> bool:
        """The daemon cannot bring these parts in. True when the request's step rests on one: then hand it back."""
        return request in self._attached and self._attached[request].replays.refused(parts)

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

    def take_heat(self) -> list[tuple[int, HeatEntry]]:
        """(request, entry) of the report that has landed; starts the next. Call every `report_steps` steps."""
        owner = {room.row: request for request, room in self.pool.rooms.items()}
        entries = [(owner[entry.row], entry) for entry in self.reports.take() if entry.row in owner]
        if not self.reports.is_under_way:
            self.reports.start()
        return entries

    # A step

    def begin(self, wanted: Sequence[int]) -> list[int]:
        """Begin a step; returns the requests that take part, in batch order. The others wait: for pages of the
        daemon or a load, or for an HBM page for their next block. When all wait there is no step.

        Raises FlexKVError(LIMIT_EXCEEDED, BAD_ARGUMENT) before anything is changed.
        """
        self._check_between_steps()
        self._check_batch(wanted)
        queries, batch = self.tables.limits.queries, []
        for request in wanted:
            attached, room = self._attached[request], self.pool.rooms[request]
            if attached.replays.state is not StepState.READY or room.stage is Stage.LOADING:
                continue
            grown, changes = self.pool.grow(request, -(-(attached.newest.length + queries) // self._tokens_per_block))
            self._write(changes)
            if grown:
                batch.append(request)
        if batch:
            failed = [self._row(request) for request in batch if self._attached[request].failed]
            self.tables.begin([self._row(request) for request in batch], failed)
            self._batch = batch
        return list(batch)

    def plan(self, group: int, topk: Tensor) -> Tensor:
        """Slots, int32 [batch_max, Q, K], of the ids `topk` selected by `group`; -1 where padded or not ok.

        Slots count in `tables.rows_of(layer, plane)` for every layer of the group; `wait(layer)` before reading.
        Raises FlexKVError(BAD_ARGUMENT, LIMIT_EXCEEDED) for what `checks` refuses, before anything is planned.
        """
        batch = [] if self._capturing else self._of_step()
        lengths = [self._attached[request].newest.length for request in batch]
        self.tables.check_step(group, topk, [self._row(request) for request in batch], lengths)
        return self.tables.plan(group, topk)

    def newest_slots(self, group: int) -> Tensor:
        """Where this step's own tokens write their rows: int32 [batch_max, Q], -1 where there is nothing to write."""
        return self.tables.newest_slots(group)

    def wait(self, layer: int) -> None:
        """What is enqueued from here on finds the rows of `layer` in their slots."""
        self.tables.copies.wait(layer)

    def collect(self) -> list[RowRun]:
        """How the step went, per request of the batch. On a device this waits for the step."""
        assert self._collected is None
        self.tables.copies.join()
        self._collected = self.tables.runs([self._row(request) for request in self._of_step()])
        return self._collected

    def commit(self, accepted: Sequence[int], oks: Sequence[bool] | None = None) -> list[Outcome]:
        """End the step: each request keeps `accepted` of its tokens, unless it is not ok; in batch order.

        `oks` are those that all ranks agree on (`agree_oks`), by default this rank's own.
        """
        batch, runs = self._of_step(), self._collected
        assert runs is not None, "commit follows collect"
        oks = [run.ok for run in runs] if oks is None else oks
        self._check_accepted(accepted, oks, runs)
        kept = [count if ok else 0 for count, ok in zip(accepted, oks, strict=True)]
        self.tables.commit(kept)
        self._batch = self._collected = None
        return [self._end_step(*each) for each in zip(batch, runs, oks, kept, strict=True)]

    def abort(self) -> None:
        """The step broke off in an error: nothing of it counts, and nothing it planned to load is believed."""
        for request in self._of_step():
            self.tables.forget_resident(self._row(request))
            self._attached[request].failed = True
        self.tables.end()
        self._batch = self._collected = None

    def capture(self, step: Callable[[int], None], sizes: Sequence[int]) -> StepGraphs:
        """Capture an engine's step for these padded batch sizes; a device only. Between `begin` and `collect` the
        engine then replays instead of calling `plan`. See `graph.StepGraphs` for what `step` may do.
        """
        self._check_between_steps()
        self._capturing = True
        try:
            return StepGraphs(step, sizes, self.tables.copies)
        finally:
            self._capturing = False

    def warm(self, request: int, group: int, ids: Sequence[int]) -> int:
        """Fetch rows into the hot buffer before the first step: the last selections of prefill, newest last.

        Those not in granted frames, or in pages anyway, are left out. Returns how many rows were fetched.
        """
        self._check_between_steps()
        attached, room = self._of(request), self.pool.rooms[request]
        shape = self.tables.groups[group].shape
        there = [
            number
            for number in ids
            if (block := number // shape.ids_per_block) not in room.pages
            and (block, shape.chunk) in attached.granted.frames
        ]
        self.tables.warm(room.row, group, there)
        return len(there)

    def check(self) -> None:
        """Recount every account, and compare the device's tables with what was decided."""
        self.pool.check()
        assert self._attached.keys() == self.pool.rooms.keys()
        for request, attached in self._attached.items():
            room = self.pool.rooms[request]
            self.tables.check(room.row, attached.newest.length, room.pages, attached.granted.frames)
            covered = {block for block in range(room.blocks) if attached.granted.is_covered(block)}
            assert covered == room.covered, "what may leave its page is not what the daemon's frames cover"

    def _end_step(self, request: int, run: RowRun, ok: bool, kept: int) -> Outcome:
        attached = self._attached[request]
        attached.failed = not ok
        if run.refused:
            attached.replays.give_up()
            return Outcome.HAND_BACK
        verdict = attached.replays.judge(ok, run.absents)
        if verdict is Verdict.DONE:
            attached.newest.commit(kept)
            return Outcome.DONE
        if verdict is Verdict.REPLAY:
            return Outcome.REPLAY
        taken, changes = self.pool.make_resident(request)
        self._write(changes)
        return Outcome.LOAD if taken else Outcome.HAND_BACK

    def _put_into_effect(self, attached: _Attached, change: PagesChange) -> None:
        request = change.request
        self.tables.change_pages(self.pool.rooms[request].row, change)
        attached.replays.revoked(change.revoked)
        attached.replays.granted((block, chunk) for block, chunk, _ in change.granted)
        for block in dict.fromkeys([*(block for block, _ in change.revoked), *(grant[0] for grant in change.granted)]):
            if attached.granted.is_covered(block):
                left = self.pool.cover(request, block)
                self._write([left] if left else [])
            else:
                self.pool.uncover(request, block)

    def _write(self, changes: Sequence[Change]) -> None:
        """Put decisions of the pool into the tables; between steps, so that the next step sees them whole."""
        for change in changes:
            room = self.pool.rooms[change.request]
            self.tables.resident.leave(room.row, change.released)
            self.tables.resident.place(room.row, change.taken, [room.pages[block] for block in change.taken])

    def _orders(self, request: int, blocks: Sequence[int]) -> list[SaveOrder]:
        orders = []
        for block in blocks:
            if block in self.pool.rooms[request].pages:
                orders.append(SaveOrder(request, block, self.pool.copy_started(request, block)))
            else:  # granted meanwhile: someone else has saved the same block
                self._attached[request].newest.ended(block, SaveOutcome.STORED)
        return orders

    def _of(self, request: int) -> _Attached:
        if request not in self._attached:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"request {request} is not attached: attach it first")
        return self._attached[request]

    def _row(self, request: int) -> int:
        return self.pool.rooms[request].row

    def _of_step(self) -> list[int]:
        if self._batch is None:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, "no step is under way: begin one")
        return self._batch

    def _check_between_steps(self) -> None:
        if self._batch is not None:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, "a step is under way: collect and commit it, or abort it, first")

    def _check_batch(self, wanted: Sequence[int]) -> None:
        most = self.tables.limits.batch_max
        if len(wanted) > most:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED, f"a batch of {len(wanted)} requests, the tables have {most} rows: split it"
            )
        if len(set(wanted)) != len(wanted):
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, "a request is twice in the batch: name each once")
        for request in wanted:
            self._of(request)

    def _check_accepted(self, accepted: Sequence[int], oks: Sequence[bool], runs: Sequence[RowRun]) -> None:
        most = self.tables.limits.queries
        if not len(accepted) == len(oks) == len(runs) or not all(0 <= count <= most for count in accepted):
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"accepted tokens per request of the batch: {len(runs)} numbers from 0 to {most}",
            )
        assert not any(ok and not run.ok for ok, run in zip(oks, runs, strict=True)), "ranks agreed on what one denies"
