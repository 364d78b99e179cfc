"""Plays the daemon's executor: moves and copies that take virtual time and really move bytes.

Each ends as one result, like the real ones. Bytes are taken and put at moments spread over a
transfer's whole duration, so a frame or a page that changes too early shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexkv_py.core.messages import (
    BlockCopy,
    BlockName,
    ChunkLanded,
    Fault,
    MoveKind,
    StartCopies,
    StartMove,
    TicketKind,
    Tier,
    TransferResult,
)
from flexkv_py.rows.grants import chunks_in
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.fake import Operation, Verdict
from tests.sim.clients import Ticket
from tests.sim.faults import MICROSECOND
from tests.sim.memory import FakeArena
from tests.sim.names import block_bytes, chunks_of, frame_pages
from tests.sim.stores import Disk
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

DAMAGED_READ = b"\x5a" * 4096
IN_DOUBT = (Fault.IO, Fault.LATE)
"""Faults after which an S3 write may have reached the bucket all the same."""


@dataclass(eq=False)
class Writing:
    """A demotion on its way: what was read of each chunk so far."""

    move: StartMove
    pages: int
    verdict: Verdict
    data: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)


@dataclass(eq=False)
class Copying:
    """One StartCopies on its way; `done[i]` is the mask of block i, `faults[i]` its first fault."""

    order: StartCopies
    ticket: Ticket
    pages: int
    chunks: list[int]
    done: list[int]
    faults: list[Fault | None]


class Executor:
    """What runs in one life of the daemon."""

    def __init__(self, world: World, arena: FakeArena) -> None:
        self._world = world
        self._arena = arena
        self.writing: dict[int, Writing] = {}

    def start_move(self, move: StartMove) -> None:
        start: dict[MoveKind, Callable[[StartMove], None]] = {
            MoveKind.PROMOTE: self._promote,
            MoveKind.DEMOTE: self._demote,
            MoveKind.DROP: self._drop,
        }
        start[move.kind](move)

    # -------------------------------------------------------------- promotions

    def _promote(self, move: StartMove) -> None:
        pages = self._pages(move.block)
        self._arena.begin_filling(move.block, _filled(move), pages)
        self._world.stores[move.tier].begin_read(move.block)
        verdict = self._world.faults.verdict(move.tier.name.lower(), Operation.READ)
        self._world.after(verdict.latency_ns, self._land, move, pages, verdict, list(chunks_in(move.chunks)))

    def _land(self, move: StartMove, pages: int, verdict: Verdict, left: list[int]) -> None:
        """One chunk arrives, or the read ends with a fault."""
        chunk, *left = left
        begins = move.chunks & -move.chunks == 1 << chunk
        frame, length = move.frames[chunk], move.chunk_bytes[chunk]
        try:
            if self._world.is_down(move.tier):
                raise TierFault(Fault.DOWN, "the tier is down")
            if begins and 0 < move.deadline_ns <= self._world.now_ns and self._world.chance.random() < 0.5:
                raise TierFault(Fault.LATE, "its deadline passed before its turn came")
            if verdict.fault is not None and (chunk >= verdict.chunk or not left):
                raise TierFault(verdict.fault, "planned")
            data, checksum = self._world.stores[move.tier].read(move.block, move.location, chunk)
        except TierFault as fault:
            self._arena.write(frame, DAMAGED_READ * (length // 4096), bytes(16))  # a part of a read is there
            self._end_promotion(move, pages, fault.fault, fault.detail)
            return
        self._arena.write(frame, data, checksum)
        self._world.oracle.landed(move)
        self._world.post(ChunkLanded(move.transfer, chunk, self._world.now_ns))
        if left:
            gap = self._world.chance.randint(0, verdict.latency_ns)
            self._world.after(gap, self._land, move, pages, verdict, left)
        else:
            self._end_promotion(move, pages, None, "")

    def _end_promotion(self, move: StartMove, pages: int, fault: Fault | None, detail: str) -> None:
        self._arena.end_filling(_filled(move), pages)
        self._world.stores[move.tier].end_read(move.block)
        self._world.finish(TransferResult(move.transfer, fault, move.location, 0, detail), move)

    # --------------------------------------------------------------- demotions

    def _demote(self, move: StartMove) -> None:
        pages = self._pages(move.block)
        self._arena.begin_reading(move.frames, pages)
        verdict = self._world.faults.verdict(move.tier.name.lower(), Operation.WRITE)
        writing = self.writing[move.transfer] = Writing(move, pages, verdict)
        early = self._world.chance.randint(0, verdict.latency_ns)
        self._world.after(early, self._take, writing)
        self._world.after(verdict.latency_ns, self._written, writing)

    def _take(self, writing: Writing) -> None:
        """Read every frame; what is written must be this block's bytes."""
        move = writing.move
        right = chunks_of(move.block, move.chunk_bytes)
        for chunk, frame in enumerate(move.frames):
            writing.data[chunk] = self._arena.read(frame)
            if writing.data[chunk][0] != right[chunk]:
                raise Violation(f"chunk {chunk} on its way to {move.tier.name} has wrong bytes", move.block)

    def _written(self, writing: Writing) -> None:
        move, world, verdict = writing.move, self._world, writing.verdict
        del self.writing[move.transfer]
        for chunk, frame in enumerate(move.frames):
            if self._arena.read(frame) != writing.data[chunk]:
                raise Violation(f"the frame of chunk {chunk} changed during its demotion", move.block)
        self._arena.end_reading(move.frames, writing.pages)
        fault, location = verdict.fault, 0
        if world.is_down(move.tier):
            fault = Fault.DOWN
        in_doubt = fault in IN_DOUBT and move.tier is Tier.S3 and world.chance.random() < world.faults.in_doubt_rate
        if fault is None or in_doubt:
            data = [writing.data[chunk][0] for chunk in range(len(move.frames))]
            checksums = [writing.data[chunk][1] for chunk in range(len(move.frames))]
            try:
                location = world.stores[move.tier].write(move.block, data, checksums)
                world.oracle.written(move)
            except TierFault as full:
                fault = full.fault
        disk = world.stores[move.tier]
        if fault is None and isinstance(disk, Disk):
            self._make_durable(move, location, disk)
        else:
            self._acknowledge(move, location, fault)

    def _make_durable(self, move: StartMove, location: int, disk: Disk) -> None:
        """Acknowledge the record once a sync, which others may share, has ended."""

        def synced() -> None:
            disk.sync()
            self._acknowledge(move, location, None)

        self._world.after(self._world.chance.choice((0, 100, 5000)) * MICROSECOND, synced)

    def _acknowledge(self, move: StartMove, location: int, fault: Fault | None) -> None:
        self._world.finish(TransferResult(move.transfer, fault, location, 0, "" if fault is None else "planned"), move)

    def torn(self) -> list[tuple[StartMove, list[bytes], list[bytes]]]:
        """Writes that a crash now would cut off."""
        cut = []
        for writing in self.writing.values():
            if writing.data:
                pieces = [writing.data[chunk] for chunk in range(len(writing.move.frames))]
                cut.append((writing.move, [data for data, _ in pieces], [checksum for _, checksum in pieces]))
        return cut

    def _drop(self, move: StartMove) -> None:
        verdict = self._world.faults.verdict(move.tier.name.lower(), Operation.DROP)
        self._world.oracle.drop_started(move)
        self._world.after(verdict.latency_ns, self._dropped, move, verdict)

    def _dropped(self, move: StartMove, verdict: Verdict) -> None:
        fault = Fault.DOWN if self._world.is_down(move.tier) else verdict.fault
        if fault is None:
            self._world.stores[move.tier].drop(move.block, move.location)
        self._world.finish(TransferResult(move.transfer, fault, 0, 0, "" if fault is None else "planned"))

    # ------------------------------------------------------------------ copies

    def start_copies(self, order: StartCopies) -> None:
        world, ticket = self._world, self._world.tickets[order.ticket]
        if not ticket.client.alive:
            for block in order.blocks:
                world.finish(TransferResult(block.transfer, Fault.MEMORY, 0, 0, "the session ended"))
            return
        assert not ticket.over, "copies are handed out for a ticket that is over"
        pages = frame_pages(ticket.client.namespace.spec)
        chunks = [chunk for chunk in range(order.chunks.bit_length()) if order.chunks >> chunk & 1]
        count = len(order.blocks)
        copying = Copying(order, ticket, pages, chunks, [0] * count, [None] * count)
        ticket.copies += 1
        for block in order.blocks:
            if order.kind is TicketKind.SAVE:
                self._arena.begin_filling(world.name(ticket.client, block.key), block.frames, pages)
                world.oracle.save_started(ticket, block.position)
            else:
                self._arena.begin_reading([block.frames[chunk] for chunk in chunks], pages)
        latency = world.faults.verdict("worker", Operation.READ).latency_ns
        moments = sorted(world.chance.randint(0, latency) for _ in chunks)
        for chunk, moment in zip(chunks, moments, strict=True):
            world.after(moment, self._copy_chunk, copying, chunk)
        world.after(latency, self._end_copies, copying)

    def _copy_chunk(self, copying: Copying, chunk: int) -> None:
        world = self._world
        for at, block in enumerate(copying.order.blocks):
            if copying.faults[at] is not None:
                continue
            if world.faults.memory_rate and world.chance.random() < world.faults.memory_rate:
                copying.faults[at] = Fault.MEMORY
                continue
            if copying.order.kind is TicketKind.SAVE:
                self._copy_out(copying.ticket, block, chunk)
            else:
                self._copy_in(copying.ticket, block, chunk)
            copying.done[at] |= 1 << chunk

    def _copy_out(self, ticket: Ticket, block: BlockCopy, chunk: int) -> None:
        data = ticket.client.slots[ticket.slots[block.position]][chunk]
        self._arena.write(block.frames[chunk], data, chunk_checksum(block.key, chunk, data))

    def _copy_in(self, ticket: Ticket, block: BlockCopy, chunk: int) -> None:
        """A hit must be that key's bytes, chunk by chunk, whoever still wants them."""
        client = ticket.client
        data, _ = self._arena.read(block.frames[chunk])
        right = block_bytes(client.namespace.digest, client.shard, block.key, chunk, len(data))
        if data != right or len(data) != client.namespace.spec.chunk_bytes[chunk]:
            raise Violation(f"chunk {chunk} was loaded with wrong bytes", self._world.name(client, block.key))
        client.slots[ticket.slots[block.position]][chunk] = data

    def _end_copies(self, copying: Copying) -> None:
        world, ticket, order = self._world, copying.ticket, copying.order
        for at, block in enumerate(order.blocks):
            if order.kind is TicketKind.SAVE:
                self._arena.end_filling(block.frames, copying.pages)
                world.oracle.save_ended(ticket, block.position, copying.faults[at])
            else:
                self._arena.end_reading([block.frames[chunk] for chunk in copying.chunks], copying.pages)
            world.finish(TransferResult(block.transfer, copying.faults[at], 0, copying.done[at], ""))
        world.copies_ended(ticket)

    def _pages(self, block: BlockName) -> int:
        return frame_pages(self._world.spec(block.namespace))


def _filled(move: StartMove) -> tuple[int, ...]:
    return tuple(move.frames[chunk] for chunk in chunks_in(move.chunks))
