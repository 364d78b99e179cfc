"""A worker's decode steps drawn from a seed: requests come, grow, are resized, meet absent rows, are verified, and go.

Every implementation given takes the same steps on tables of its own, over one arena of random bytes. What
row an output must name is known from the arena, whatever the tables say.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from flexkv_py.geometry import ALIGN_BYTES, Geometry, Plane
from flexkv_tiers.hbm.shape import GroupShape, TableLimits, group_shape
from flexkv_tiers.hbm.tables import EMPTY, UNMANAGED, GroupTables, RequestTables, RowSteps
from tests.hbm.contents import FREED

CPU = torch.device("cpu")
REQUESTS = 4
SEGMENTS = 3


@dataclass(frozen=True)
class Case:
    """Sizes of one group. `row_bytes` of each plane that moves; `block` and `per_id` in tokens."""

    row_bytes: tuple[int, ...]
    block: int = 16
    per_id: int = 1
    partial: bool = False
    queries: int = 1
    selected: int = 8
    slots: int = 40
    layers: int = 2
    blocks: int = 24

    @property
    def name(self) -> str:
        return f"{'+'.join(map(str, self.row_bytes))}-per{self.per_id}-q{self.queries}-k{self.selected}-h{self.slots}"

    def shape(self, batch: int = 3) -> GroupShape:
        """Two groups of `layers` layers; the second is the one under test, and the index plane stays."""
        layers = tuple(range(2 * self.layers))
        row = 1 if self.partial else self.per_id
        planes = [Plane(f"plane{at}", layers, length, row) for at, length in enumerate(self.row_bytes)]
        geometry = Geometry(
            (Plane("index", layers, 132), *planes),
            self.block,
            (layers[: self.layers], layers[self.layers :]),
            chunk_count_max=1,
        )
        limits = TableLimits(REQUESTS, batch, self.blocks, self.queries)
        newest = 2 * self.block // self.per_id + self.queries
        return group_shape(
            geometry,
            1,
            [plane.name for plane in planes],
            limits,
            slots=self.slots,
            selected=self.selected,
            newest=newest,
            tokens_per_id=self.per_id,
            partial_ids=self.partial,
        )


def frame_bytes(shape: GroupShape) -> int:
    """Room for a frame of this shape: as far as its rows reach, whole 4 KiB pages."""
    rows = shape.ids_per_block
    end = max(plane.offsets[-1] + rows * plane.slot_bytes for plane in shape.planes)
    return -(-end // ALIGN_BYTES) * ALIGN_BYTES


class Arena:
    """Random bytes in segments, and a frame for each block of each request."""

    def __init__(self, shape: GroupShape, chance: random.Random) -> None:
        self.shape = shape
        length, blocks = frame_bytes(shape), shape.limits.blocks_max
        per_segment = -(-REQUESTS * blocks // SEGMENTS)
        self.segment_bytes = per_segment * length + ALIGN_BYTES  # frames do not divide a segment
        units, step = self.segment_bytes // ALIGN_BYTES, length // ALIGN_BYTES
        self.segments = [
            np.frombuffer(np.random.default_rng(chance.getrandbits(32)).bytes(self.segment_bytes), dtype=np.uint8)
            for _ in range(SEGMENTS)
        ]
        frames = [segment * units + at * step for segment in range(SEGMENTS) for at in range(per_segment)]
        chance.shuffle(frames)
        self.frames = [frames[request * blocks : (request + 1) * blocks] for request in range(REQUESTS)]

    def row(self, request: int, each: int, plane: int, layer: int) -> bytes:
        """What id `each` of a request is, in one layer of one plane."""
        block, within = divmod(each, self.shape.ids_per_block)
        segment, at = divmod(self.frames[request][block] * ALIGN_BYTES, self.segment_bytes)
        moving = self.shape.planes[plane]
        at += moving.offsets[layer] + within * moving.slot_bytes
        return self.segments[segment][at : at + moving.slot_bytes].tobytes()


class Copyist:
    """One implementation at work on tables of its own."""

    def __init__(self, steps: RowSteps, shape: GroupShape, arena: Arena, device: torch.device = CPU) -> None:
        self.steps, self.device = steps, device
        self.requests = RequestTables(shape.limits, shape.picks, device)
        self.group = GroupTables(shape, device)
        self.topk = torch.full_like(self.group.slots, EMPTY)
        if device == CPU:
            self.requests.segments.map(arena.segments, arena.segment_bytes)
        else:  # as the daemon pins its arena; a kernel may not read pageable memory
            self.pinned = [torch.from_numpy(segment.copy()).pin_memory() for segment in arena.segments]
            self.requests.segments.point([segment.data_ptr() for segment in self.pinned], arena.segment_bytes)

    def step(self, topk: torch.Tensor) -> None:
        """Plan, then copy every layer of every plane."""
        self.topk.copy_(topk)
        self.steps.plan(self.requests, self.group, self.topk)
        for plane in range(len(self.group.shape.planes)):
            for layer in range(len(self.group.shape.layers)):
                self.steps.copy(self.requests, self.group, layer, plane)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything a step may change, by name, on the host; of lists only what is valid."""
        found = {
            name: value.cpu()
            for tables in (self.requests, self.group)
            for name, value in vars(tables).items()
            if isinstance(value, torch.Tensor)
        }
        for name in ("miss_id", "miss_slot", "miss_frame"):
            found[name] = _valid(found[name], found["miss_count"])
        found["absent_ids"] = _valid(found["absent_ids"], found["absent_count"])
        for plane, layers in enumerate(self.group.all_rows):
            found |= {f"rows {plane} {layer}": rows.cpu() for layer, rows in enumerate(layers)}
        return found


def _valid(lists: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return lists.masked_fill(torch.arange(lists.shape[1]) >= counts[:, None], EMPTY)


@dataclass
class Step:
    """One drawn step: the batch, what it selects (padding rows hold noise), what verification will keep."""

    batch: list[int]
    topk: torch.Tensor
    accepted: list[int]


class World:
    """Draws steps and lets every implementation take them."""

    def __init__(self, case: Case, seed: int, batch: int = 3) -> None:
        self.chance = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.shape = case.shape(batch)
        self.arena = Arena(self.shape, self.chance)
        self.copyists: list[Copyist] = []
        self.lengths: dict[int, int] = {}
        self.newest_first: dict[int, int] = {}
        self.favourites: dict[int, list[int]] = {}
        self.spoilt: set[tuple[int, int]] = set()
        """(request, id) whose rows a rejected token wrote in this step."""
        self.changes: list[tuple[int, int, set[int] | None]] = []
        """Before this step: (request, its slots now, those still in their page; None where it was opened)."""
        columns, hot = self.shape.columns, self.shape.hot_columns
        pages = [list(range(request * columns, (request + 1) * columns)) for request in range(REQUESTS)]
        self.hot = [own[:hot] for own in pages]
        """HBM pages of each request's LRU slots, by column."""
        self.newest = [own[hot:] for own in pages]
        """The same of its newest slots; EMPTY in requests that have none."""
        self.count = [self.shape.slots] * REQUESTS
        self.free: list[int] = []
        self.fitted = [False] * REQUESTS
        """Where unsaved rows of a request lie: in their own slots, or in newest ones."""

    def let(self, steps: RowSteps, device: torch.device = CPU) -> Copyist:
        """One more implementation takes all steps from the first on; outputs are looked up in the first's."""
        self.copyists.append(Copyist(steps, self.shape, self.arena, device))
        return self.copyists[-1]

    @property
    def tokens_max(self) -> int:
        return self.shape.limits.blocks_max * self.shape.tokens_per_block - self.shape.limits.queries

    def pages(self, request: int) -> list[int]:
        """The page table a request shall have: blocks that are saved."""
        saved = min(self.newest_first[request], self.tokens_max + 64) // self.shape.tokens_per_block
        return [frame if block < saved else EMPTY for block, frame in enumerate(self.arena.frames[request])]

    def draw(self) -> Step:
        """Open and close requests, save pages, and draw a selection for some of those that are open."""
        self.changes = []
        for request in range(REQUESTS):
            if request not in self.lengths:
                self._open(request)
            elif self.lengths[request] + self.shape.limits.queries > self.tokens_max or self.chance.random() < 0.03:
                self._close(request)
            else:
                self._save(request)
        self._resize_some()
        most = min(self.shape.limits.batch_max, len(self.lengths))
        batch = self.chance.sample(sorted(self.lengths), self.chance.randint(0, most))
        queries, selected = self.shape.limits.queries, self.shape.selected
        size = (self.shape.limits.batch_max, queries, selected)
        topk = torch.randint(-5, 10_000, size, dtype=torch.int32, generator=self.noise)
        for row, request in enumerate(batch):
            for query in range(queries):
                topk[row, query] = torch.tensor(self._select(request), dtype=torch.int32)
        return Step(batch, topk, [self.chance.randint(0, queries) for _ in batch])

    def settle(self, batch: list[int]) -> None:
        """Requests that outgrow their slots in this step take their unsaved rows to the newest slots."""
        for request in batch:
            length = self.lengths[request]
            first = self.shape.whole_ids(min(length, self.newest_first[request]))
            for copyist in self.copyists if self.fitted[request] and not self.fits(request) else []:
                if EMPTY not in self.newest[request]:
                    copyist.group.settle(request, first, self.shape.visible_ids(length))
            self.fitted[request] = self.fits(request)

    def fits(self, request: int) -> bool:
        return self._visible(request) <= self.count[request]

    def place(self, request: int, slot: int) -> int:
        """Where a slot of a request lies, EMPTY where it has no page."""
        column, within = divmod(slot, self.shape.ids_per_block)
        hot = self.hot[request]
        columns = hot + [EMPTY] * (self.shape.hot_columns - len(hot)) + self.newest[request]
        return EMPTY if columns[column] == EMPTY else columns[column] * self.shape.ids_per_block + within

    def take(self, step: Step) -> None:
        """Plan and copy, then write the rows of the step's own tokens where the plan says."""
        for copyist in self.copyists:
            tables = copyist.requests
            tables.batch.fill_(len(step.batch))
            tables.request.copy_(torch.tensor(step.batch + [0] * (len(tables.request) - len(step.batch))))
            tables.accepted.copy_(torch.tensor(step.accepted + [9] * (len(tables.request) - len(step.batch))))
            copyist.step(step.topk)
        self.spoilt = set()
        for row, request in enumerate(step.batch):
            for query in range(self.shape.limits.queries):
                self._write_newest(row, request, query, step.accepted[row])

    def commit(self, step: Step) -> None:
        for copyist in self.copyists:
            copyist.steps.commit(copyist.requests)
        for row, request in enumerate(step.batch):
            self.lengths[request] += step.accepted[row] * int(self.copyists[0].requests.ok[request])

    def rearm(self, batch: list[int]) -> None:
        """Absent pages come in, and their requests take part again."""
        for request in batch:
            for copyist in self.copyists:
                copyist.group.page_table[request] = torch.tensor(self.pages(request))
                copyist.requests.rearm(request)

    def lose_pages(self, batch: list[int]) -> None:
        """Some pages of the batch leave DRAM."""
        for request in batch:
            blocks = self.shape.limits.blocks_max
            for block in self.chance.sample(range(blocks), blocks // 4):
                for copyist in self.copyists:
                    copyist.group.page_table[request, block] = EMPTY

    def misplaced(self, step: Step) -> list[tuple[int, int]]:
        """(request, id) whose output slot does not hold that id's rows, in any layer or plane: must be none."""
        wrong = []
        group = self.copyists[0].group
        for row, request in enumerate(step.batch):
            chosen, slots = step.topk[row].reshape(-1).tolist(), group.slots[row].reshape(-1).tolist()
            for each, slot in zip(chosen, slots, strict=True):
                if slot == EMPTY or (request, each) in self.spoilt:
                    continue
                for plane, layers in enumerate(group.all_rows):
                    for layer, rows in enumerate(layers):
                        got = rows[slot].numpy().tobytes()
                        if got != self.arena.row(request, each, plane, layer):
                            wrong.append((request, each))
        return wrong

    def trampled(self) -> list[int]:
        """Pages of nobody that were written to: must be none."""
        group, within = self.copyists[0].group, self.shape.ids_per_block
        every = [rows.view(-1, within, rows.shape[1])[self.free] for layers in group.all_rows for rows in layers]
        return [page for at, page in enumerate(self.free) if any((rows[at] != FREED).any() for rows in every)]

    def _resize_some(self) -> None:
        """Pages go from some requests to others."""
        for request in range(REQUESTS):
            if request in self.lengths and self.chance.random() < 0.15:
                self._resize(request)

    def _resize(self, request: int) -> None:
        """Any size, now and then one that a step's selection may not fit into."""
        shape, old = self.shape, self.hot[request]
        kept = old[: self.chance.choice([len(old), self.chance.randint(0, len(old))])]
        least = 0 if self.chance.random() < 0.1 else shape.picks
        wanted = self.chance.choice([shape.slots, self.chance.randint(least, shape.slots)])
        column_count = min(-(-wanted // shape.ids_per_block), len(old) + len(self.free))
        taken, self.free = kept[:column_count], self.free + old[len(kept[:column_count]) :]
        self.chance.shuffle(self.free)
        while len(taken) < column_count:
            taken.append(self.free.pop())
        self._fill_free()
        self.hot[request], self.count[request] = taken, min(wanted, column_count * shape.ids_per_block)
        same = {column for column, pages in enumerate(zip(old, taken, strict=False)) if pages[0] == pages[1]}
        stay = {slot for slot in range(self.count[request]) if slot // shape.ids_per_block in same}
        self.changes.append((request, self.count[request], stay))
        for copyist in self.copyists:
            copyist.group.resize(request, taken, self.count[request], self._visible(request))
        self._write_unsaved(request)

    def _fill_free(self) -> None:
        for copyist in self.copyists:
            for layers in copyist.group.all_rows:
                for rows in layers:
                    rows.view(-1, self.shape.ids_per_block, rows.shape[1])[self.free] = FREED

    def _visible(self, request: int) -> int:
        return self.shape.visible_ids(self.lengths[request] + self.shape.limits.queries)

    def _open(self, request: int) -> None:
        block = self.shape.tokens_per_block
        length = self._first_length()
        managed = self.chance.random() < 0.5
        self.lengths[request] = length
        self.newest_first[request] = length // block * block if managed else UNMANAGED
        self.favourites[request] = []
        self.changes.append((request, self.count[request], None))
        own = range(request * self.shape.columns, (request + 1) * self.shape.columns)[self.shape.hot_columns :]
        self.newest[request] = list(own) if managed or self.chance.random() < 0.7 else [EMPTY] * len(own)
        for copyist in self.copyists:
            copyist.requests.open(request, length)
            copyist.requests.newest_first[request] = self.newest_first[request]
            copyist.group.open(request)
            copyist.group.slot_page[request, self.shape.hot_columns :] = torch.tensor(self.newest[request])
            copyist.group.page_table[request] = torch.tensor(self.pages(request))
        self._write_unsaved(request)

    def _first_length(self) -> int:
        """Any, one that fits into the slots, or one that soon will not."""
        most = self.tokens_max - 3 * self.shape.tokens_per_block
        fitting = min(most, self.shape.slots * self.shape.tokens_per_id - self.shape.limits.queries)
        soon = max(0, fitting - self.chance.randint(0, 6 * self.shape.limits.queries * self.shape.tokens_per_id))
        return self.chance.choice([self.chance.randint(0, most), self.chance.randint(0, fitting), soon])

    def _write_unsaved(self, request: int) -> None:
        """What prefill left of the page being written."""
        shape, length = self.shape, self.lengths[request]
        self.fitted[request] = self.fits(request)
        first = shape.whole_ids(min(length, self.newest_first[request]))
        for each in range(first, shape.visible_ids(length)):
            slot = each if self.fits(request) else shape.newest_at + each % shape.newest
            self._write(self.place(request, slot), request, each)

    def _write(self, slot: int, request: int, each: int, *, spoil: bool = False) -> None:
        if slot == EMPTY:
            return
        for copyist in self.copyists:
            for plane, layers in enumerate(copyist.group.all_rows):
                for layer, rows in enumerate(layers):
                    row = self.arena.row(request, each, plane, layer)
                    written = bytes(255 - byte for byte in row) if spoil else row
                    rows[slot] = torch.frombuffer(bytearray(written), dtype=torch.uint8)

    def _write_newest(self, row: int, request: int, query: int, accepted: int) -> None:
        length, shape = self.lengths[request], self.shape
        slot = int(self.copyists[0].group.newest_slot[row, query])
        each = (length + query) // shape.tokens_per_id
        kept_from = each * shape.tokens_per_id if shape.partial_ids else (each + 1) * shape.tokens_per_id - 1
        spoil = kept_from >= length + accepted
        self._write(slot, request, each, spoil=spoil)
        if spoil:
            self.spoilt.add((request, each))

    def _close(self, request: int) -> None:
        del self.lengths[request]
        for copyist in self.copyists:
            copyist.requests.close(request)

    def _save(self, request: int) -> None:
        """Full pages of a managed request are saved: always when the newest slots get short."""
        length, first = self.lengths[request], self.newest_first[request]
        if first == UNMANAGED:
            return
        block = self.shape.tokens_per_block
        if self.chance.random() < 0.2 or length + self.shape.limits.queries - first >= 2 * block:
            self.newest_first[request] = max(first, length // block * block)
            for copyist in self.copyists:
                copyist.requests.newest_first[request] = self.newest_first[request]
                copyist.group.page_table[request] = torch.tensor(self.pages(request))

    def _select(self, request: int) -> list[int]:
        """Favourites, fresh ids, the newest; some cells padding, some twice, some rows short."""
        shape, visible = self.shape, self._visible(request)
        if not visible:
            return [EMPTY] * shape.selected
        known = [each for each in self.favourites[request] if each < visible]
        drawn = []
        for _ in range(shape.selected):
            kind = self.chance.random()
            if kind < 0.08:
                drawn.append(EMPTY)
            elif kind < 0.6 and known:
                drawn.append(self.chance.choice(known))
            elif kind < 0.75:
                drawn.append(max(0, visible - 1 - self.chance.randrange(shape.limits.queries + 2)))
            else:
                drawn.append(self.chance.randrange(visible))
        self.favourites[request] = (drawn + known)[: shape.selected * 3]
        if self.chance.random() < 0.1:
            short = self.chance.randrange(shape.selected)
            drawn[short:] = [EMPTY] * (shape.selected - short)
        return drawn
