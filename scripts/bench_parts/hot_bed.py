"""Requests over a filled arena, and selections of them with a known share of misses: for the part `hot`."""

from __future__ import annotations

import torch

from flexkv_py.geometry import ALIGN_BYTES, Geometry, Plane
from flexkv_tiers.hbm.shape import TableLimits, group_shape
from flexkv_tiers.hbm.tables import GroupTables, RequestTables

ROW_BYTES, BLOCK = 656, 64
WORDS = ROW_BYTES // 8


class Bed:
    """`batch` requests of `tokens` tokens each, all rows in DRAM, one layer. Each row begins with whose it is."""

    def __init__(
        self,
        selected: int,
        slots: int,
        batch: int,
        tokens: int,
        device: torch.device,
        arena: torch.Tensor | None = None,
    ) -> None:
        blocks = tokens // BLOCK
        geometry = Geometry((Plane("kv", (0,), ROW_BYTES),), BLOCK)
        limits = TableLimits(batch, batch, blocks)
        self.shape = group_shape(geometry, 0, ["kv"], limits, slots=slots, selected=selected)
        self.tokens, self.device = tokens, device
        self.arena = arena if arena is not None else make_arena(batch, tokens)
        self.requests = RequestTables(limits, self.shape.picks, device)
        self.group = GroupTables(self.shape, device)
        if device.type == "cpu":
            self.requests.segments.map([self.arena.numpy().reshape(-1)], self.arena.nbytes)
        else:
            self.requests.segments.point([self.arena.data_ptr()], self.arena.nbytes)
        # The last token is the step's own; the others are drawn in an order that scatters them over the pages.
        self.scattered = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(7)).int()
        self.open()

    def open(self) -> None:
        """All requests begin anew, with an empty hot buffer."""
        batch, units = self.shape.limits.batch_max, self.arena.shape[2] // ALIGN_BYTES
        self.requests.batch.fill_(batch)
        self.requests.request.copy_(torch.arange(batch))
        frames = torch.arange(batch * self.shape.limits.blocks_max, dtype=torch.int32).view(batch, -1) * units
        for request in range(batch):
            self.requests.open(request, self.tokens - 1)
            self.group.open(request)
        self.group.page_table.copy_(frames)

    def selection(self, step: int, share: float) -> torch.Tensor:
        """Step's ids int32 [batch, 1, K], of which `share` are misses: a core selected always, the rest in turn.

        The turn is longer than the hot buffer, so under LRU every one of the rest is gone when it comes again.
        """
        selected = self.shape.selected
        missed = round(share * selected)
        others = torch.arange(step * missed, (step + 1) * missed) % (self.tokens - 1 - selected) + selected
        ids = torch.cat((self.scattered[: selected - missed], self.scattered[others]))
        return ids.expand(self.shape.limits.batch_max, 1, selected).contiguous().to(self.device)

    def equals(self, other: Bed) -> bool:
        """Whether slots, tables, order, counters and rows are those of the other bed."""
        names = ("slots", "slot_position", "order", "counters", "heat", "miss_count")
        same = all(torch.equal(getattr(self.group, name).cpu(), getattr(other.group, name).cpu()) for name in names)
        return same and torch.equal(self.group.all_rows[0][0].cpu(), other.group.all_rows[0][0].cpu())

    def misplaced(self) -> int:
        """Rows of the hot buffer that are not what their table says."""
        slots, wrong = torch.arange(self.shape.slots, device=self.device), 0
        for request, held in enumerate(self.group.slot_position.long()):
            there = self.group.all_rows[0][0].view(torch.int64)[self.group.place(request, slots), 0]
            wrong += int(((there != request * self.tokens + held) & (held >= 0)).sum())
        return wrong


def make_arena(batch: int, tokens: int, *, pinned: bool = False) -> torch.Tensor:
    """Frames uint8 [batch, blocks, frame bytes]; word 0 of each row is request · tokens + id."""
    frame_bytes = -(-BLOCK * ROW_BYTES // ALIGN_BYTES) * ALIGN_BYTES
    size = (batch, tokens // BLOCK, frame_bytes)
    arena = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    words = arena.view(torch.int64)
    words.fill_(3)
    first = words[:, :, : BLOCK * WORDS].unflatten(2, (BLOCK, WORDS))[..., 0]
    first.copy_(torch.arange(batch * tokens).view(first.shape))
    return arena
