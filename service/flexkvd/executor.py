"""Carries out the planner's moves and copies; each ends as exactly one TransferResult.

Owns what is in flight and its deadlines; decides nothing and retries nothing. Moves go over links to
the tiers below, copies to the lanes. Whatever is raised becomes a fault: what a tier expects as
itself, anything else as INTERNAL with its traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from flexkv_py.core.messages import (
    ChunkLanded,
    Fault,
    MoveKind,
    StartCopies,
    StartMove,
    TicketKind,
    Tier,
    TransferResult,
)
from flexkv_tiers.base import FrameSpan, TierFault, TierStore
from flexkv_tiers.lanes import CopyTask, Direction, Lanes
from flexkv_tiers.memory import WorkerMemory
from flexkv_tiers.memory.worker import PageTable
from flexkvd.engine import Engine
from flexkvd.fault_log import FaultLog
from flexkvd.links import Link
from flexkvd.sessions import Sessions
from flexkvd.tickets import Ticket

log = logging.getLogger(__name__)

DROPS_IN_FLIGHT_MAX = 8
TOGETHER_BYTES_MAX = 512 * 1024
"""Chunks this small in all are copied by one task: it costs more than the copy, and nobody gains by an earlier end."""


@dataclass(frozen=True)
class TierLimits:
    """How much goes on at a time between DRAM and one tier, and how long one transfer may take."""

    reads_in_flight_max: int
    writes_in_flight_max: int
    transfer_s_max: float


@dataclass(slots=True)
class _Batch:
    """One StartCopies on its way: `tasks_left` are still to end, `done[i]` is block i's mask.

    `positions`, `keys`, `frames` and `pages` are those of its blocks, in order.
    """

    ticket: Ticket
    memory: WorkerMemory
    copies: StartCopies
    positions: list[int]
    keys: list[bytes]
    frames: list[tuple[int, ...]]
    pages: PageTable
    tasks_left: int
    done: list[int]
    faults: list[Fault | None]


@dataclass(slots=True)
class Traffic:
    """What went over the links since the start, by link; and failed transfers by link and fault."""

    bytes: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)


class Executor:
    """Takes StartMove and StartCopies from the engine and gives results back to it.

    A store whose coroutine is cancelled by a deadline must end only when it touches the frames no
    more: the planner reuses them as soon as it hears of the end.
    """

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        lanes: Lanes,
        stores: Mapping[Tier, tuple[TierStore, TierLimits]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.traffic = Traffic()
        self.links: dict[tuple[Tier, MoveKind], Link] = {}
        self._engine = engine
        self._sessions = sessions
        self._lanes = lanes
        self._stores = stores
        self._loop = loop
        self._fault_log = FaultLog()
        self._copies: set[asyncio.Task[None]] = set()
        for tier, (_, limits) in stores.items():
            word = tier.name.lower()
            for kind, name, in_flight_max in (
                (MoveKind.PROMOTE, f"{word}_dram", limits.reads_in_flight_max),
                (MoveKind.DEMOTE, f"dram_{word}", limits.writes_in_flight_max),
                (MoveKind.DROP, f"{word}_drop", DROPS_IN_FLIGHT_MAX),
            ):
                self.links[tier, kind] = Link(name, in_flight_max, loop)
        engine.handlers |= {StartMove: self._start_move, StartCopies: self._start_copies}

    def close(self) -> None:
        """Start no move that still waits; called when nobody hears of its end any more."""
        for link in self.links.values():
            link.close()

    async def settle(self) -> None:
        """Return when no move and no copy runs or waits for its turn."""
        while running := [*self._copies, *(task for link in self.links.values() for task in link.tasks)]:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    # ------------------------------------------------------------------ moves

    def _start_move(self, move: StartMove) -> None:
        link = self.links[move.tier, move.kind]
        link.submit(move.priority, lambda: self._move(move, link.name))

    async def _move(self, move: StartMove, link: str) -> None:
        store, limits = self._stores[move.tier]
        try:
            if 0 < move.deadline_ns <= self._engine.now_ns():  # what has begun runs to its end, others may want it
                raise TierFault(Fault.LATE, "its deadline passed before its turn came")
            async with asyncio.timeout(limits.transfer_s_max):
                location = await self._carry(store, move, link)
            result = TransferResult(move.transfer, location=location)
        except TierFault as fault:
            result = TransferResult(move.transfer, fault.fault, detail=fault.detail)
        except TimeoutError:
            detail = f"{move.kind.value} did not end within {limits.transfer_s_max:g} s"
            result = TransferResult(move.transfer, Fault.LATE, detail=detail)
        except Exception:
            log.exception("a bug while a transfer ran on %s", link)
            result = TransferResult(move.transfer, Fault.INTERNAL, detail="a bug; see the daemon's log")
        self._end(result, link)

    async def _carry(self, store: TierStore, move: StartMove, link: str) -> int:
        spans = [FrameSpan(frame, length) for frame, length in zip(move.frames, move.chunk_bytes, strict=False)]
        match move.kind:
            case MoveKind.PROMOTE:
                async with aclosing(store.read(move.block, move.location, spans)) as landing:  # type: ignore[type-var]
                    async for chunk in landing:
                        self.traffic.bytes[link] += spans[chunk].length
                        self._engine.post(ChunkLanded(move.transfer, chunk, self._engine.now_ns()))
                return move.location
            case MoveKind.DEMOTE:
                location = await store.write(move.block, spans)
                self.traffic.bytes[link] += sum(move.chunk_bytes)
                return location
            case MoveKind.DROP:
                await store.drop(move.block, move.location)
                return 0

    # ----------------------------------------------------------------- copies

    def _start_copies(self, copies: StartCopies) -> None:
        session = self._sessions.by_number.get(copies.session)
        ticket = session.tickets.get(copies.ticket) if session is not None else None
        if session is None or session.closed or ticket is None or ticket.memory is None:
            for block in copies.blocks:  # the worker died before its copies began
                self._engine.finish(TransferResult(block.transfer, Fault.MEMORY, detail="the session ended"))
            return
        batch = _batch(ticket, ticket.memory.mapping, copies)
        ticket.copies += len(copies.blocks)
        together = chunks_together(copies.chunks, len(copies.blocks), batch.memory.chunk_bytes)
        batch.tasks_left = len(together)
        for chunks in together:  # lanes keep the order, so chunk 0 of all blocks goes first
            task = self._loop.create_task(self._copy(batch, chunks))
            self._copies.add(task)
            task.add_done_callback(self._copy_ended)

    def _copy_ended(self, task: asyncio.Task[None]) -> None:
        self._copies.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._engine.fail(task.exception())  # a copy without an end would hold its frames for ever

    async def _copy(self, batch: _Batch, chunks: list[int]) -> None:
        into = batch.copies.kind is TicketKind.LOAD
        direction = Direction.INTO_WORKER if into else Direction.OUT_OF_WORKER
        task = CopyTask(direction, batch.memory, chunks, batch.keys, batch.frames, batch.pages)
        try:
            faults = await self._lanes.copy(task, batch.copies.priority)
        except Exception:
            log.exception("a bug while chunks %s of ticket %d were copied", chunks, batch.ticket.number)
            faults = [Fault.INTERNAL] * len(batch.keys)
        link = "dram_worker" if into else "worker_dram"
        self.traffic.bytes[link] += faults.count(None) * task.block_bytes
        self._chunks_ended(batch, chunks, faults, link)

    def _chunks_ended(self, batch: _Batch, chunks: list[int], faults: list[Fault | None], link: str) -> None:
        mask = sum(1 << chunk for chunk in chunks)
        for at, fault in enumerate(faults):
            if fault is None:
                batch.done[at] |= mask
            else:
                batch.faults[at] = batch.faults[at] or fault
        copied = [batch.positions[at] for at, fault in enumerate(faults) if fault is None]
        if copied:
            batch.ticket.note_copied(copied, chunks)
        batch.tasks_left -= 1
        if not batch.tasks_left:
            for block, done, fault in zip(batch.copies.blocks, batch.done, batch.faults, strict=True):
                self._end(TransferResult(block.transfer, fault, chunks=done), link)
            batch.ticket.copies_ended(len(batch.copies.blocks))

    def _end(self, result: TransferResult, link: str) -> None:
        if result.fault is not None:
            self.traffic.faults[link, result.fault.value] += 1
            self._fault_log.failed(link, result.fault, result.detail, self._loop.time())
        self._engine.finish(result)


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


def _batch(ticket: Ticket, memory: WorkerMemory, copies: StartCopies) -> _Batch:
    assert ticket.pages is not None
    blocks = copies.blocks
    positions = [block.position for block in blocks]
    keys: list[bytes] = [block.key for block in blocks]
    frames = [block.frames for block in blocks]
    none: list[Fault | None] = [None] * len(blocks)
    return _Batch(ticket, memory, copies, positions, keys, frames, ticket.pages[positions], 0, [0] * len(blocks), none)
