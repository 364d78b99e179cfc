"""A worker that decodes over the row path and believes nothing: every row it is given is compared with its text.

Rows are arithmetic (`contents`), selections are the test's; the calls on `RowPath` are those of an engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

from flexkv_py.geometry import Geometry, Plane
from flexkv_tiers.hbm.graph import HostCopies
from flexkv_tiers.hbm.newest import SaveOrder, SaveOutcome
from flexkv_tiers.hbm.rooms import Admission
from flexkv_tiers.hbm.shape import GroupShape, TableLimits, group_shape
from flexkv_tiers.hbm.steps import RowRun, StepTables
from flexkv_tiers.hbm.tables import EMPTY, RowSteps
from flexkv_tiers.hbm.worker import Outcome, RowPath
from tests.hbm import contents
from tests.hbm.store import Store

CPU = torch.device("cpu")
BLOCK_TOKENS = 8
Select = Callable[[int, GroupShape, int], list[int]]
"""(request, shape, visible ids) → ids, at most Q·K of them, EMPTY for padding."""


def shapes(
    limits: TableLimits, slots: int = 16, selected: int = 6, per_id: int = 1, row_bytes: int = 16
) -> tuple[Geometry, list[GroupShape]]:
    """Two groups in two chunks: layers 0 and 1 share a selection, layer 2 has its own; the index plane stays."""
    layers = (0, 1, 2)
    geometry = Geometry(
        (Plane("kv", layers, row_bytes, per_id), Plane("index", layers, 8)),
        BLOCK_TOKENS,
        ((0, 1), (2,)),
        chunk_count_max=2,
        chunk_bytes_min=1,
    )
    made = [
        group_shape(geometry, group, ["kv"], limits, slots=slots, selected=selected, newest=4, tokens_per_id=per_id)
        for group in (0, 1)
    ]
    return geometry, made


class _KernelLostError(Exception):
    """A step dies where copies would start."""


class _LostCopies(HostCopies):
    def __init__(self) -> None:
        super().__init__(self.start)

    def start(self, *_: object) -> None:
        raise _KernelLostError


class Decoder:
    """A `RowPath`, the store it reads from, and the texts of its requests."""

    def __init__(
        self,
        requests: int = 3,
        pages: int = 24,
        blocks: int = 16,
        queries: int = 1,
        frames: int = 64,
        replays_max: int = 8,
        start_pages: int | None = None,
        kernels: Callable[[list[GroupShape]], RowSteps] | None = None,
        **sizes: int,
    ) -> None:
        limits = TableLimits(requests, requests, blocks, queries)
        geometry, made = shapes(limits, **sizes)
        self.shapes = made
        tables = StepTables(made, pages, CPU, row_steps=kernels and kernels(made))
        self.path = RowPath(tables, pages, geometry.chunk_count, replays_max, start_pages)
        self.store = Store(self.path, geometry.chunk_count, frames, geometry.frame_bytes)
        self.texts: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.saves: list[tuple[SaveOrder, int]] = []
        """Running saves with the text they are of: the request may be gone."""
        self.loads: list[tuple[int, int, dict[int, int]]] = []
        """Running loads: request, text, block → page."""

    def attach(self, request: int, text: int, tokens: int, cached: int | None = None) -> Admission:
        """A request of `tokens` tokens of a text; what is not cached is prefilled, what is may be on its way."""
        cached = self.store.cached_blocks(text) if cached is None else cached
        cached = min(cached, tokens // BLOCK_TOKENS)
        admission = self.path.attach(request, tokens, cached)
        if admission is Admission.WAIT:
            return admission
        self.texts[request], self.lengths[request] = text, tokens
        self.store.attach(request, text)
        pages = self.path.pages(request)
        for block in range(cached, -(-tokens // BLOCK_TOKENS)):
            self._write_block(text, block, pages[block], tokens)
        self.path.prefilled(request, tokens - cached * BLOCK_TOKENS)
        self._start_load(request)
        return admission

    def detach(self, request: int, *, save: bool) -> None:
        text = self.texts.pop(request)
        del self.lengths[request]
        self.saves += [(order, text) for order in self.path.detach(request, save=save)]
        self.store.detach(request)

    def step(self, wanted: list[int], select: Select, accepted: Callable[[int], int] = lambda _: 1) -> list[Outcome]:
        """One decode step; every row that comes back is looked at. Returns outcomes in the order of `begin`."""
        batch = self.path.begin(wanted)
        if not batch:
            return []
        for shape in self.shapes:
            self._group(batch, shape, select)
        runs = self.path.collect()
        return self.finish(batch, runs, [accepted(request) for request in batch])

    def finish(
        self, batch: list[int], runs: list[RowRun], accepted: list[int], oks: list[bool] | None = None
    ) -> list[Outcome]:
        outcomes = self.path.commit(accepted, oks)
        for request, outcome, count in zip(batch, outcomes, accepted, strict=True):
            if outcome is Outcome.DONE:
                self.lengths[request] += count
            elif outcome is Outcome.LOAD:
                self._start_load(request)
        return outcomes

    def break_off(self, wanted: list[int], select: Select) -> bool:
        """A step that dies after its plans and before its copies. False when no request could take part."""
        batch = self.path.begin(wanted)
        if not batch:
            return False
        for shape in self.shapes:
            with suppress(_KernelLostError):
                lost, self.path.tables.copies = self.path.tables.copies, _LostCopies()
                try:
                    self._group(batch, shape, select)
                finally:
                    self.path.tables.copies = lost
        self.path.abort()
        return True

    def start_saves(self) -> None:
        self.saves += [(order, self.texts[order.request]) for order in self.path.take_saves()]

    def end_save(self, at: int, outcome: SaveOutcome) -> None:
        """The copy reads the page now, and not before."""
        order, text = self.saves.pop(at)
        self.store.save(order, text)
        self.path.save_ended(order.request, order.block, outcome)

    def end_load(self, at: int, *, whole: bool = True) -> bool:
        """The copies of a load, all of them now; one that is not whole leaves half of its pages as they were.

        Returns whether the request can go on.
        """
        request, text, pages = self.loads.pop(at)
        for block, page in list(pages.items())[:: 1 if whole else 2]:
            self.store.load(text, block, page)
        return self.path.load_ended(request, pages, whole=whole)

    def steer(self) -> int | None:
        """Let HBM follow what was missed. Where a request becomes resident its load runs beside the steps."""
        request = self.path.steer(self.path.take_counts())
        if request is not None:
            self._start_load(request)
        return request

    def acknowledge(self) -> None:
        for request, version in self.path.take_acks():
            self.store.acknowledged(request, version)

    def save_all(self) -> None:
        """Save every full block, one copy after the other."""
        self.start_saves()
        while self.saves:
            self.end_save(0, SaveOutcome.STORED)
            self.start_saves()

    def grant_all(self, request: int) -> None:
        """Grant every block of a request that the store has."""
        blocks = range(self.store.cached_blocks(self.texts[request]))
        parts = [(block, chunk) for block in blocks for chunk in range(self.store.chunk_count)]
        self.path.apply(self.store.grant(request, parts))
        self.acknowledge()

    def start_hot(self, request: int, text: int, tokens: int) -> None:
        """A request that starts hot: its full blocks are in the store, and none of them in frames."""
        self.attach(request, text, tokens)
        while self.loads:
            self.end_load(0)
        self.save_all()
        self.detach(request, save=False)
        pages, most = self.path.pool.pages, self.path.pool.limits.hot_pages_max
        taken = [pages.take() for _ in range(pages.free_count - 4 - most)]  # so few that it cannot be resident
        assert self.attach(request, text, tokens) is Admission.HOT
        for page in taken:
            pages.give_back(page)

    def check(self) -> None:
        self.path.check()
        self.store.check()
        assert {request: attached.newest.length for request, attached in self.path._attached.items()} == self.lengths

    def _group(self, batch: list[int], shape: GroupShape, select: Select) -> None:
        topk = torch.full((shape.limits.batch_max, shape.limits.queries, shape.selected), EMPTY, dtype=torch.int32)
        for row, request in enumerate(batch):
            visible = shape.visible_ids(self.lengths[request] + shape.limits.queries)
            ids = select(request, shape, visible)
            topk[row].view(-1)[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        slots = self.path.plan(shape.group, topk)
        newest = self.path.newest_slots(shape.group)
        oks = [bool((slots[row] >= 0).any()) or bool((topk[row] < 0).all()) for row in range(len(batch))]
        for layer in shape.layers:
            self.path.wait(layer)
            for row, request in enumerate(batch):
                self._write_newest(request, shape, layer, newest[row], garbage=not oks[row])
                self._compare(request, shape, layer, topk[row], slots[row])
        assert (slots[len(batch) :] == EMPTY).all()

    def _write_newest(self, request: int, shape: GroupShape, layer: int, slots: torch.Tensor, *, garbage: bool) -> None:
        """A request that is not ok computes garbage from here on, and writes it where its rows belong."""
        memory = self.path.tables.rows_of(layer, 0).numpy()
        for query, slot in enumerate(slots.tolist()):
            if slot != EMPTY:
                ids = np.array([(self.lengths[request] + query) // shape.tokens_per_id])
                memory[slot] = contents.rows(self.texts[request], ids, layer, 0, memory.shape[1])
                if garbage:
                    memory[slot] = contents.GARBAGE

    def _compare(self, request: int, shape: GroupShape, layer: int, topk: torch.Tensor, slots: torch.Tensor) -> None:
        ids, at = topk.reshape(-1).numpy(), slots.reshape(-1).numpy()
        there = at != EMPTY
        assert there.all() or not there.any() or (there == (ids != EMPTY)).all(), "a request is ok or not, as a whole"
        assert not (there & (ids == EMPTY)).any()
        rows = self.path.tables.rows_of(layer, 0).numpy()[at[there]]
        wanted = contents.rows(self.texts[request], ids[there], layer, 0, rows.shape[1])
        assert (rows == wanted).all(), f"request {request}, layer {layer}: a wrong row among ids {ids[there]}"

    def _start_load(self, request: int) -> None:
        pages = self.path.loading(request)
        if pages:
            self.loads.append((request, self.texts[request], pages))

    def _write_block(self, text: int, block: int, page: int, tokens: int) -> None:
        for shape in self.shapes:
            ids = contents.block_ids(shape, block)
            ids = ids[ids < shape.whole_ids(tokens)]
            for layer in shape.layers:
                memory = self.path.tables.rows_of(layer, 0)[self.path.tables.page_slots(shape.group, page)].numpy()
                memory[:] = contents.FREED
                memory[: len(ids)] = contents.rows(text, ids, layer, 0, memory.shape[1])


def select_some(chance: random.Random) -> Select:
    """Anything an indexer may select: short rows, padding inside, duplicates, the newest id, few or many blocks."""

    def select(request: int, shape: GroupShape, visible: int) -> list[int]:
        near = chance.random() < 0.5
        ids = []
        for _ in range(chance.randint(0, shape.picks)):
            first = max(0, visible - 12) if near else 0
            ids.append(chance.randrange(first, visible) if visible and chance.random() < 0.9 else EMPTY)
        return ids

    return select
