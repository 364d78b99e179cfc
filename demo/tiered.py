"""Decoding with more KV than HBM holds, and than DRAM holds: a row path over the daemon's arena.

Owns what an engine does around `flexkv_tiers.hbm.worker.RowPath`: admits requests with what the cache has of
them, keeps the index keys of each in HBM, and between steps passes on what the daemon and the row path have to say
to each other (`rows_link`). Called by `decoding` through `Store`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from demo.batch import Member
from demo.decoding import Job
from demo.hbm import HotMemory
from demo.rows_link import RowsLink
from demo.shape import CHUNK_TOKENS
from flexkv_py.keys import BlockKey
from flexkv_tiers.hbm.rooms import Admission
from flexkv_tiers.hbm.worker import Outcome, RowPath

_WAIT_S = 0.5
_HEAT_STEPS = 16
"""Steps between two reports of selections."""

_HOT_PAGES_START = 2
"""What a hot buffer has until misses say otherwise: twice what a step selects."""


class TieredStore:
    """Rows in hot buffers and pages (`batch.RowStore`), whole blocks in the daemon's tiers (`decoding.Store`)."""

    def __init__(self, memory: HotMemory, socket_path: str, instance: str) -> None:
        self.memory = memory
        start = max(memory.tables.hot_pages_min, min(_HOT_PAGES_START, memory.tables.hot_pages_max))
        self.path = RowPath(memory.tables, memory.budget.page_count, memory.geometry.chunk_count, hot_pages_start=start)
        self.link = RowsLink(self.path, memory, socket_path, instance)
        self.admissions: Counter[str] = Counter()
        self.widened = self.warmed = 0
        """Requests that became resident as they went on; rows fetched into hot buffers before a step wanted them."""
        self._tokens: dict[int, Sequence[int]] = {}  # of running requests, growing as they are sampled
        self._selected: dict[int, dict[int, Tensor]] = {}  # by request and group, the last time
        self._warm: set[int] = set()  # requests whose hot buffers were filled when they began to be read
        self._asking = Window(memory.tables.limits.batch_max)
        self._batch: list[int] = []
        self._handed_back: list[int] = []
        self.steps = 0

    def admit(self, job: Job, tokens: Sequence[int]) -> int | None:
        """Rows of cached whole blocks stay where they are unless there are pages for all; what is not cached is fed."""
        self._exchange()
        if self.path.pool.is_fenced(job.request):
            self.link.end_copies()  # it was handed back, and its blocks are still being saved
        found = self.link.find(tokens[:-1])  # the last is fed in any case: its logits are wanted
        cached = len(found.keys)
        admission = self.path.attach(job.request, max(1, cached * CHUNK_TOKENS), cached)
        if admission is Admission.WAIT:
            found.release()
            return None
        self.admissions[admission.value] += 1
        self._tokens[job.request] = tokens
        newest = torch.arange(cached * CHUNK_TOKENS)[-self.memory.shape.top_k :]  # prefill was another's
        self._selected.setdefault(job.request, dict.fromkeys(self.memory.tables.groups, newest))
        row = self.path.pool.rooms[job.request].row
        if admission is Admission.RESIDENT:
            self._load(job.request, found.keys)
        else:
            self.link.load_index(row, found.keys)
        self.link.attach(job.request, found)
        return cached * CHUNK_TOKENS

    def begin(self, wanted: Sequence[int]) -> list[int]:
        self._exchange()
        self._warm_up()
        still = [request for request in wanted if request in self._tokens]
        self._batch = self.path.begin(self._asking.choose(still, self.link.asking))
        return self._batch

    def end(self, batch: Sequence[int]) -> list[bool]:
        assert list(batch) == self._batch
        self.path.collect()
        outcomes = self.path.commit([1] * len(batch))
        for request, outcome in zip(batch, outcomes, strict=True):
            self._follow(request, outcome)
        self._asking.judge([outcome is Outcome.DONE for outcome in outcomes])
        self.steps += 1
        if self.steps % _HEAT_STEPS == 0:
            self._steer()
        return [outcome is Outcome.DONE for outcome in outcomes]

    def take_handed_back(self) -> list[int]:
        """Requests that cannot go on as they are; they are detached, their full blocks saved."""
        taken, self._handed_back = self._handed_back, []
        return taken

    def leave(self, job: Job) -> None:
        self.link.detach(job.request, self._fed(job.request))
        del self._tokens[job.request], self._selected[job.request]
        self._warm.discard(job.request)

    def wait(self) -> None:
        self.link.wait(_WAIT_S)

    def index_keys(self, group: int, member: Member, key: Tensor, count: int) -> Tensor:
        keys = self.memory.index_keys[group, self.path.pool.rooms[member.request].row]
        keys[member.position] = key
        return keys[:count]

    def places(self, group: int, members: Sequence[Member], selected: Tensor) -> tuple[Tensor, Tensor]:
        limits = self.memory.tables.limits
        topk = torch.full((limits.batch_max, limits.queries, selected.shape[1]), -1, dtype=torch.int32)
        topk[: len(members), 0] = selected
        self._note_selected(group, members, selected)
        slots = self.path.plan(group, topk)[: len(members), 0]
        return slots.long(), self.path.newest_slots(group)[: len(members), 0].long()

    def rows(self, layer: int) -> Tensor:
        self.path.wait(layer)
        return self.memory.rows(layer)

    def close(self) -> None:
        self.link.close()
        self.memory.close()

    def _load(self, request: int, keys: Sequence[BlockKey]) -> None:
        """Bring whole blocks into the request's pages, and its index keys with them."""
        pages = self.path.loading(request)
        if not pages:
            return
        self.link.load(keys, pages)
        self.memory.keep_index(self.path.pool.rooms[request].row, pages)
        self.path.load_ended(request, pages, whole=True)

    def _exchange(self) -> None:
        for request, outcome in self.link.exchange(self._fed):
            self._follow(request, outcome)

    def _follow(self, request: int, outcome: Outcome) -> None:
        """Do what the row path wants of an engine, other than to run the step again."""
        if outcome is Outcome.LOAD:
            self._load(request, self.link.keys_of(request))
        elif outcome is Outcome.HAND_BACK:
            self.link.detach(request, self._fed(request))
            del self._tokens[request]
            self._handed_back.append(request)

    def _fed(self, request: int) -> Sequence[int]:
        """The tokens whose rows count: all but those fed next."""
        return self._tokens[request][: self.path.length(request)]

    def _steer(self) -> None:
        """Report what was selected, and let HBM follow what was missed."""
        wider = self.path.steer(self.link.report_heat())
        if wider is not None:
            self.link.widen(wider)
            self.widened += 1

    def _warm_up(self) -> None:
        """A hot buffer that is read from now on begins with the rows selected last."""
        asking = self.link.asking
        for request, selected in self._selected.items():
            room = self.path.pool.rooms.get(request)
            if room is None or not room.is_hot:
                self._warm.discard(request)
            elif request not in self._warm | asking and self.link.has_pages(request):
                self._warm.add(request)
                self.warmed += sum(self.path.warm(request, group, ids.tolist()) for group, ids in selected.items())

    def _note_selected(self, group: int, members: Sequence[Member], selected: Tensor) -> None:
        chunk = self.memory.tables.groups[group].shape.chunk
        for member, positions in zip(members, selected, strict=True):
            self._selected[member.request][group] = positions
            if self.link.arrivals.has_ahead(member.request):
                blocks = torch.unique(positions[positions >= 0] // CHUNK_TOKENS).tolist()
                self.link.arrivals.selected(member.request, chunk, blocks)


class Window:
    """How many requests step at once when rows are absent.

    Where every step needs more than DRAM has room for, requests that step together push each other's rows out.
    Fewer at a time get on: half as many whenever most of a batch has failed, one more whenever it has not.
    """

    def __init__(self, most: int) -> None:
        self._most = self._limit = most

    def choose(self, wanted: Sequence[int], asking: Set[int]) -> list[int]:
        """Those whose step has failed before come first: what they asked for is pinned until they are done."""
        failed = [request for request in wanted if request in asking]
        fresh = [request for request in wanted if request not in asking]
        return [*failed, *fresh[: max(0, self._limit - len(failed))]]

    def judge(self, done: Sequence[bool]) -> None:
        """A step has ended."""
        failed = len(done) - sum(done)
        self._limit = max(1, self._limit // 2) if 2 * failed > len(done) else min(self._most, self._limit + 1)
