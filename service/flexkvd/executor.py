"""Carries out the planner's moves and copies; each ends as exactly one TransferResult.

Owns what is in flight and its deadlines; decides nothing and retries nothing. Moves go over links to
the tiers below, copies to the lanes. Whatever is raised becomes a fault: what a tier expects as
itself, anything else as INTERNAL with its traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from flexkv_py.core.messages import (
    BlockCopy,
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
from flexkvd.engine import Engine
from flexkvd.links import Link
from flexkvd.sessions import Sessions
from flexkvd.tickets import Ticket

log = logging.getLogger(__name__)

DROPS_IN_FLIGHT_MAX = 8


@dataclass(frozen=True)
class TierLimits:
    """How much goes on at a time between DRAM and one tier, and how long one transfer may take."""

    reads_in_flight_max: int
    writes_in_flight_max: int
    transfer_s_max: float


@dataclass(slots=True)
class _Batch:
    """One StartCopies on its way: `chunks_left` are still to end, `done[i]` is block i's mask."""

    ticket: Ticket
    blocks: list[BlockCopy]
    chunks_left: int
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
        count = len(copies.blocks)
        chunks = [chunk for chunk in range(copies.chunks.bit_length()) if copies.chunks >> chunk & 1]
        batch = _Batch(ticket, copies.blocks, len(chunks), [0] * count, [None] * count)
        ticket.copies += count
        for chunk in chunks:  # lanes keep the order, so chunk 0 of all blocks goes first
            task = self._loop.create_task(self._copy(batch, chunk, copies))
            self._copies.add(task)
            task.add_done_callback(self._copy_ended)

    def _copy_ended(self, task: asyncio.Task[None]) -> None:
        self._copies.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._engine.fail(task.exception())  # a copy without an end would hold its frames for ever

    async def _copy(self, batch: _Batch, chunk: int, copies: StartCopies) -> None:
        ticket, blocks = batch.ticket, batch.blocks
        assert ticket.memory is not None
        assert ticket.pages is not None
        into = copies.kind is TicketKind.LOAD
        positions = [block.position for block in blocks]
        try:
            task = CopyTask(
                Direction.INTO_WORKER if into else Direction.OUT_OF_WORKER,
                ticket.memory.mapping,
                chunk,
                [block.key for block in blocks],
                [block.frames[chunk] for block in blocks],
                ticket.pages[positions],
            )
            faults = await self._lanes.copy(task, copies.priority)
            copied = [at for at, fault in enumerate(faults) if fault is None]
        except Exception:
            log.exception("a bug while chunk %d of ticket %d was copied", chunk, ticket.number)
            faults, copied = [Fault.INTERNAL] * len(blocks), []
        link = "dram_worker" if into else "worker_dram"
        self.traffic.bytes[link] += len(copied) * ticket.memory.mapping.chunk_bytes[chunk]
        self._chunk_ended(batch, chunk, faults, copied, link)

    def _chunk_ended(self, batch: _Batch, chunk: int, faults: list[Fault | None], copied: list[int], link: str) -> None:
        for at in copied:
            batch.done[at] |= 1 << chunk
        for at, fault in enumerate(faults):
            batch.faults[at] = batch.faults[at] or fault
        if copied:
            batch.ticket.note_copied([batch.blocks[at].position for at in copied], chunk)
        batch.chunks_left -= 1
        if not batch.chunks_left:
            for block, done, fault in zip(batch.blocks, batch.done, batch.faults, strict=True):
                self._end(TransferResult(block.transfer, fault, chunks=done), link)
            batch.ticket.copies_ended(len(batch.blocks))

    def _end(self, result: TransferResult, link: str) -> None:
        if result.fault is not None:
            self.traffic.faults[link, result.fault.value] += 1
        self._engine.finish(result)
