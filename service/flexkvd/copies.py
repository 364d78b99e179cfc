"""Copies between a worker's memory and frames: gathered for a turn of the loop, cut, and handed to the lanes.

Owns what of a StartCopies is still to end; decides nothing. Chunks of one promotion that land together
come as an instruction each; gathering makes one copy of them. Made and heard by the executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flexkv_py.core.messages import BlockCopy, Fault, Priority, StartCopies, TicketKind, TransferResult
from flexkv_tiers.lanes import CopyTask, Direction, Lanes
from flexkv_tiers.memory import WorkerMemory
from flexkv_tiers.memory.worker import PageTable
from flexkvd.durations import timings
from flexkvd.engine import Engine
from flexkvd.sessions import Sessions
from flexkvd.tickets import Ticket

log = logging.getLogger(__name__)

TOGETHER_BYTES_MAX = 512 * 1024
"""Chunks this small in all are copied by one task: it costs more than the copy, and nobody gains by an earlier end."""

Copied = Callable[[str, list[TransferResult], int], None]
"""Hears of ended copies: over which link, their results, and how many bytes were copied."""


@dataclass(slots=True)
class _Block:
    """One block that is to be copied: `masks` has the chunks of each instruction that named it; all end alike."""

    copy: BlockCopy
    masks: list[int]

    @property
    def mask(self) -> int:
        return sum(self.masks)  # the planner hands out no chunk twice


@dataclass(slots=True)
class _Batch:
    """Blocks of one ticket with the same chunks to copy, on their way: `tasks_left` are still to end.

    `done[i]` is block i's mask; `keys`, `frames` and `pages` are those of its blocks, in order.
    """

    ticket: Ticket
    memory: WorkerMemory
    into: bool
    priority: Priority
    begun_ns: int
    blocks: list[_Block]
    positions: list[int]
    keys: list[bytes]
    frames: list[tuple[int, ...]]
    pages: PageTable
    tasks_left: int
    done: list[int]
    faults: list[Fault | None]
    copied_bytes: int = 0


class Copies:
    """Carries out StartCopies on the lanes."""

    def __init__(
        self, engine: Engine, sessions: Sessions, lanes: Lanes, loop: asyncio.AbstractEventLoop, copied: Copied
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._lanes = lanes
        self._loop = loop
        self._tell_copied = copied
        self.copy_time = timings()  # of batches from the lanes' queue to their end, by operation and priority
        self._gathered: dict[Ticket, list[StartCopies]] = {}  # of this turn of the loop

    def start(self, copies: StartCopies) -> bool:
        """Copy, beginning in the next turn of the loop; False when the worker is gone, and nothing is begun."""
        session = self._sessions.by_number.get(copies.session)
        ticket = session.tickets.get(copies.ticket) if session is not None else None
        if session is None or session.closed or ticket is None or ticket.memory is None:
            return False
        ticket.copies += len(copies.blocks)
        if not self._gathered:
            self._loop.call_soon(self._begin)
        self._gathered.setdefault(ticket, []).append(copies)
        return True

    def _begin(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for ticket, instructions in gathered.items():
            for mask, blocks in joined(instructions).items():
                self._begin_batch(ticket, instructions[0], mask, blocks)

    def _begin_batch(self, ticket: Ticket, copies: StartCopies, mask: int, blocks: list[_Block]) -> None:
        assert ticket.memory is not None
        into = copies.kind is TicketKind.LOAD
        batch = _batch(ticket, ticket.memory.mapping, into, blocks, copies.priority, self._engine.now_ns())
        together = chunks_together(mask, len(blocks), batch.memory.chunk_bytes)
        batch.tasks_left = len(together)
        direction = Direction.INTO_WORKER if into else Direction.OUT_OF_WORKER
        for chunks in together:  # lanes keep the order, so chunk 0 of all blocks goes first
            task = CopyTask(direction, batch.memory, chunks, batch.keys, batch.frames, batch.pages, ticket.after)
            if ticket.gates is not None:
                task.gates = ticket.gates.of(chunks)
            self._lanes.start(task, copies.priority, partial(self._chunks_ended, batch, task))

    def _chunks_ended(self, batch: _Batch, task: CopyTask, faults: list[Fault | None]) -> None:
        try:
            self._note(batch, task, faults)
        except Exception as error:  # a copy without an end would hold its frames for ever
            self._engine.fail(error)

    def _note(self, batch: _Batch, task: CopyTask, faults: list[Fault | None]) -> None:
        mask = sum(1 << chunk for chunk in task.chunks)
        copied = []
        for at, fault in enumerate(faults):
            if fault is None:
                batch.done[at] |= mask
                copied.append(batch.positions[at])
            else:
                batch.faults[at] = batch.faults[at] or fault
        batch.copied_bytes += len(copied) * task.block_bytes
        if copied:
            batch.ticket.note_copied(copied, list(task.chunks), self._engine.now_ns())
        batch.tasks_left -= 1
        if not batch.tasks_left:
            if not any(batch.faults):
                took_s = (self._engine.now_ns() - batch.begun_ns) / 1e9
                self.copy_time[batch.ticket.kind.value, batch.priority.name.lower()].add(took_s)
            detail = batch.ticket.after.why_not if batch.ticket.after is not None else ""
            results = [
                TransferResult(block.copy.transfer, fault, chunks=done & mask, detail=detail if fault else "")
                for block, done, fault in zip(batch.blocks, batch.done, batch.faults, strict=True)
                for mask in block.masks
            ]
            link = "dram_worker" if batch.into else "worker_dram"
            self._tell_copied(link, results, batch.copied_bytes)
            batch.ticket.copies_ended(len(results))


def joined(instructions: Sequence[StartCopies]) -> dict[int, list[_Block]]:
    """The blocks of one ticket's instructions, each once, by the mask of all its chunks, in order of arrival."""
    blocks: dict[int, _Block] = {}
    for instruction in instructions:
        for copy in instruction.blocks:
            known = blocks.get(copy.transfer)
            if known is None:
                blocks[copy.transfer] = _Block(copy, [instruction.chunks])
            else:
                assert not known.mask & instruction.chunks, "a chunk is copied once"
                known.masks.append(instruction.chunks)
    by_mask: dict[int, list[_Block]] = {}
    for block in blocks.values():
        by_mask.setdefault(block.mask, []).append(block)
    return by_mask


def chunks_together(mask: int, block_count: int, chunk_bytes: Sequence[int]) -> list[list[int]]:
    """The chunks of a mask in order, cut into runs of which each is copied at once."""
    together: list[list[int]] = []
    room_bytes = 0
    for chunk in range(mask.bit_length()):
        if mask >> chunk & 1:
            copied_bytes = block_count * chunk_bytes[chunk]
            if copied_bytes > room_bytes:
                together.append([])
                room_bytes = TOGETHER_BYTES_MAX
            together[-1].append(chunk)
            room_bytes -= copied_bytes
    return together


def _batch(
    ticket: Ticket, memory: WorkerMemory, into: bool, blocks: list[_Block], priority: Priority, now_ns: int
) -> _Batch:
    assert ticket.pages is not None
    positions = [block.copy.position for block in blocks]
    keys: list[bytes] = [block.copy.key for block in blocks]
    frames = [block.copy.frames for block in blocks]
    first, count = positions[0], len(positions)
    in_a_row = positions == list(range(first, first + count))
    pages = ticket.pages[first : first + count] if in_a_row else ticket.pages[positions]  # a view is much cheaper
    none: list[Fault | None] = [None] * count
    return _Batch(ticket, memory, into, priority, now_ns, blocks, positions, keys, frames, pages, 0, [0] * count, none)
