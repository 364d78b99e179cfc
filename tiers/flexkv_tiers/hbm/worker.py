"""`RowPath`: what a worker embeds to decode with more KV than its HBM holds.

Between steps: `attach`, `prefilled`, `apply`, `take_acks`, `take_asks`, `take_saves`, `detach` (`requests`). In a
step: `begin`, then per layer group `plan` and per layer `wait`, then `collect` and `commit`. Speaks to no daemon:
what is to be sent is handed out, what arrives is handed in, and nothing but `collect` waits. Owns the order of these
calls. Life of a request: docs/row-path.md, "In a worker". One thread calls all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from torch import Tensor

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.checks import check_accepted
from flexkv_tiers.hbm.graph import StepGraphs
from flexkv_tiers.hbm.replay import REPLAYS_MAX, StepState, Verdict
from flexkv_tiers.hbm.requests import Attached, Requests
from flexkv_tiers.hbm.rooms import Stage
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


class RowPath(Requests):
    """The row path of one worker: its requests, and the steps they take."""

    def __init__(
        self,
        tables: StepTables,
        page_count: int,
        chunk_count: int,
        replays_max: int = REPLAYS_MAX,
        hot_pages_start: int | None = None,
    ) -> None:
        super().__init__(tables, page_count, chunk_count, replays_max, hot_pages_start)
        self._collected: list[RowRun] | None = None
        self._planned: set[int] = set()  # groups of the step under way
        self._capturing = False

    def ready(self, wanted: Sequence[int]) -> list[bool]:
        """Which of these requests could take part in a step now; those have the pages for it from here on.

        Ranks that decode together begin with the requests that all of them find ready (`agree_oks`). Raises as `begin`.
        """
        self._check_between_steps()
        self._check_batch(wanted)
        return [self._prepare(request) for request in wanted]

    def begin(self, wanted: Sequence[int]) -> list[int]:
        """Begin a step; returns the requests that take part, in batch order. The others wait: for pages of the
        daemon or a load, or for an HBM page for their next block. When all wait there is no step.

        Raises FlexKVError: BAD_ARGUMENT for requests that are not attached or named twice, LIMIT_EXCEEDED for more than
        the batch holds or one that outgrows its tables.
        """
        batch = [request for request, ready in zip(wanted, self.ready(wanted), strict=True) if ready]
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
        if group in self._planned and not self._capturing:
            raise _refuse(f"layer group {group} is planned already: all its layers read by one selection")
        lengths = [self._attached[request].newest.length for request in batch]
        self.tables.check_step(group, topk, [self._row(request) for request in batch], lengths)
        self._planned.add(group)
        return self.tables.plan(group, topk)

    def newest_slots(self, group: int) -> Tensor:
        """Where this step's own tokens write their rows: int32 [batch_max, Q], -1 where there is nothing to write."""
        self.tables.group_of(group)
        return self.tables.newest_slots(group)

    def wait(self, layer: int) -> None:
        """What is enqueued from here on finds the rows of `layer` in their slots: those that its group has planned."""
        if self.tables.group_with(layer) not in self._planned:
            raise _refuse(f"nothing is planned for layer {layer} in this step: plan its layer group first")
        self.tables.copies.wait(layer)

    def collect(self) -> list[RowRun]:
        """How the step went, per request of the batch. On a device this waits for the step."""
        rows = [self._row(request) for request in self._of_step()]
        if self._collected is not None:
            raise _refuse("the step is collected already: commit it")
        self.tables.copies.join()
        self._collected = self.tables.runs(rows)
        return self._collected

    def commit(self, accepted: Sequence[int], oks: Sequence[bool] | None = None) -> list[Outcome]:
        """End the step: each request keeps `accepted` of its tokens, unless it is not ok; in batch order.

        `oks` are those that all ranks agree on (`agree_oks`), by default this rank's own.
        """
        batch, runs = self._of_step(), self._collected
        if runs is None:
            raise _refuse("the step is not collected yet: collect it before it is committed")
        own = [run.ok for run in runs]
        oks = own if oks is None else oks
        check_accepted(accepted, oks, own, self.tables.limits.queries)
        kept = [count if ok else 0 for count, ok in zip(accepted, oks, strict=True)]
        self.tables.commit(kept)
        self._end()
        return [self._end_step(*each) for each in zip(batch, runs, oks, kept, strict=True)]

    def abort(self) -> None:
        """The step broke off in an error: nothing of it counts, and nothing it planned to load is believed."""
        for request in self._of_step():
            self.tables.forget_resident(self._row(request))
            self._attached[request].failed = True
        self.tables.end()
        self._end()

    def refuse(self, request: int) -> Outcome | None:
        """The daemon will not bring in what the request's failed step asked for. Returns what to do instead.

        None for a step that has succeeded meanwhile, or a request that is gone.
        """
        self._check_between_steps()
        attached = self._attached.get(request)
        if attached is None or not attached.replays.refused():
            return None
        return self._make_resident(request, attached)

    def capture(self, step: Callable[[int], None], sizes: Sequence[int]) -> StepGraphs:
        """Capture an engine's step for these padded batch sizes; a device only. Between `begin` and `collect` the
        engine then replays instead of calling `plan`. See `graph.StepGraphs` for what `step` may do.
        """
        self._check_between_steps()
        self._capturing = True
        try:
            return StepGraphs(step, sizes, self.tables.copies)
        finally:
            self._capturing, self._planned = False, set()

    def _end(self) -> None:
        self._batch = self._collected = None
        self._planned = set()

    def _prepare(self, request: int) -> bool:
        attached, room = self._attached[request], self.pool.rooms[request]
        if attached.replays.state is not StepState.READY or room.stage is Stage.LOADING:
            return False
        tokens = attached.newest.length + self.tables.limits.queries
        grown, changes = self.pool.grow(request, -(-tokens // self._tokens_per_block))
        self._write(changes)
        return grown

    def _end_step(self, request: int, run: RowRun, ok: bool, kept: int) -> Outcome:
        attached = self._attached[request]
        attached.failed = not ok
        if run.refused:
            attached.replays.give_up()
            return Outcome.HAND_BACK
        replayed = attached.replays.replay_count > 0
        verdict = attached.replays.judge(ok, run.absents)
        if verdict is Verdict.DONE:
            if replayed:
                self._replayed.append(request)
            self._lengthen(request, kept)
            return Outcome.DONE
        if verdict is Verdict.REPLAY:
            return Outcome.REPLAY
        return self._make_resident(request, attached)

    def _make_resident(self, request: int, attached: Attached) -> Outcome:
        """The last resort of a step that never finds its rows: all of them in pages, or the request goes back."""
        under_way = bool(self.pool.rooms[request].loading)
        taken, changes = self.pool.make_resident(request)
        self._write(changes)
        if not taken:
            return Outcome.HAND_BACK
        if not self.pool.rooms[request].loading:  # it had all its rows: another rank did not
            attached.replays.made_resident()
            return Outcome.REPLAY
        return Outcome.REPLAY if under_way else Outcome.LOAD

    def _of_step(self) -> list[int]:
        if self._batch is None:
            raise _refuse("no step is under way: begin one")
        return self._batch

    def _check_batch(self, wanted: Sequence[int]) -> None:
        most = self.tables.limits.batch_max
        if len(wanted) > most:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED, f"a batch of {len(wanted)} requests, the tables have {most} rows: split it"
            )
        if len(set(wanted)) != len(wanted):
            raise _refuse("a request is twice in the batch: name each once")
        for request in wanted:
            self._of(request)


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
