"""A tier in memory whose latency and faults are written by a script or drawn from a seed.

`FakeRecords` is the synchronous core: real record bytes, so that every corruption a disk can have can
be had here. The simulator drives it on virtual time by itself; `FakeStore` is the same as a
`TierStore` on asyncio. Records outlive the store, as a disk outlives the daemon.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flexkv_py.core.messages import BlockName, Fault, FoundBlock, Tier
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.base import FoundBatch, FrameSpan, TierFault
from flexkv_tiers.codec import HEADER_BYTES, Header, chunk_checksum, pack_header, parse_header
from flexkv_tiers.memory import Arena

NANOSECONDS = 1_000_000_000


class Operation(StrEnum):
    """What a tier is asked to do."""

    WRITE = "write"
    READ = "read"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one operation meets: a latency, and perhaps a fault.

    A read meets its fault at chunk `chunk`, those before it land. CORRUPT on a write is silent: the
    write succeeds and one byte of the record has another value. Every other fault is raised.
    """

    latency_ns: int = 0
    fault: Fault | None = None
    chunk: int = 0


WELL = Verdict()


class FaultPlan:
    """Verdicts for operations in the order they are asked for: scripted ones first, then seeded chance.

    `rates[operation][fault]` is a probability; latencies are uniform in `latency_ns` (from, to).
    The same seed and the same questions give the same answers.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_ns: tuple[int, int] = (0, 0),
        rates: Mapping[Operation, Mapping[Fault, float]] | None = None,
        chunk_count_max: int = 8,
    ) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - it must repeat, not keep a secret
        self._latency_ns = latency_ns
        self._chunk_count_max = chunk_count_max
        self._scripts: dict[Operation, deque[Verdict]] = {operation: deque() for operation in Operation}
        self.rates = {operation: dict((rates or {}).get(operation, {})) for operation in Operation}

    def script(self, operation: Operation, *verdicts: Verdict) -> None:
        """The next operations of this kind meet these verdicts, whatever chance says."""
        self._scripts[operation].extend(verdicts)

    def verdict(self, operation: Operation) -> Verdict:
        """What the operation that begins now will meet."""
        if self._scripts[operation]:
            return self._scripts[operation].popleft()
        latency_ns = self._chance.randint(*self._latency_ns)
        for fault, rate in self.rates[operation].items():
            if self._chance.random() < rate:
                return Verdict(latency_ns, fault, self._chance.randrange(self._chunk_count_max))
        return Verdict(latency_ns)


class FakeRecords:
    """Records by location. Nothing waits here: an operation happens whole when its method is called."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.damaged = 0  # met by `found`
        self.raw: dict[int, bytearray] = {}  # header and chunks as a disk would hold them; tests damage them
        self._next_location = 1
        self._room: dict[int, int] = {}  # bytes each location takes, however its record was damaged since

    def write(
        self,
        block: BlockName,
        chunks: Sequence[bytes | memoryview],
        checksums: Sequence[bytes],
        verdict: Verdict = WELL,
    ) -> int:
        """Store a record and return its location. Raises TierFault; then nothing is stored."""
        if verdict.fault not in (None, Fault.CORRUPT):
            raise TierFault(verdict.fault, "planned fault on write")
        record = bytearray(pack_header(block, [len(chunk) for chunk in chunks], checksums))
        record += b"".join(chunks)
        if self.used_bytes + len(record) > self.capacity_bytes:
            raise TierFault(Fault.FULL, f"all {self.capacity_bytes} bytes are taken")
        if verdict.fault is Fault.CORRUPT:
            record[HEADER_BYTES] ^= 0xFF
        location, self._next_location = self._next_location, self._next_location + 1
        self.raw[location] = record
        self._room[location] = len(record)
        self.used_bytes += len(record)
        return location

    def read(self, block: BlockName, location: int, chunk: int, verdict: Verdict = WELL) -> tuple[bytes, bytes]:
        """One chunk's bytes and checksum. Raises TierFault MISSING, CORRUPT, or the verdict's at its chunk."""
        if verdict.fault is not None and chunk >= verdict.chunk:
            raise TierFault(verdict.fault, f"planned fault on read of chunk {chunk}")
        entry = self.header(block, location).chunks[chunk]
        data = bytes(self.raw[location][entry.offset : entry.offset + entry.raw_bytes])
        if len(data) < entry.raw_bytes or chunk_checksum(block.key, chunk, data) != entry.checksum:
            raise TierFault(Fault.CORRUPT, f"chunk {chunk} does not match its checksum")
        return data, entry.checksum

    def header(self, block: BlockName, location: int) -> Header:
        """The header at a location, if it is that block's. Raises TierFault MISSING or CORRUPT."""
        if location not in self.raw:
            raise TierFault(Fault.MISSING, f"no record at location {location}")
        header = parse_header(self.raw[location][:HEADER_BYTES])
        if not header.matches(block):
            raise TierFault(Fault.CORRUPT, f"the record is another block's: key {header.block.key.hex()}")
        return header

    def drop(self, block: BlockName, location: int, verdict: Verdict = WELL) -> None:  # noqa: ARG002 - as TierStore
        """Forget a record. Raises the verdict's fault; the record then stays."""
        if verdict.fault is not None:
            raise TierFault(verdict.fault, "planned fault on drop")
        self.raw.pop(location, None)
        self.used_bytes -= self._room.pop(location, 0)

    def found(self) -> list[FoundBatch]:
        """Every record with a whole header, by namespace, shard and size; damaged ones are forgotten."""
        batches: dict[tuple[NamespaceDigest, int, int], FoundBatch] = {}
        for location, record in list(self.raw.items()):
            try:
                header = parse_header(record[:HEADER_BYTES])
            except TierFault:
                self.raw.pop(location)
                self.used_bytes -= self._room.pop(location)
                self.damaged += 1
                continue
            block = header.block
            group = (block.namespace, block.shard, header.record_bytes)
            batch = batches.setdefault(group, FoundBatch(*group, []))
            batch.blocks.append(FoundBlock(block.key, block.parent, location))
        return list(batches.values())


class FakeStore:
    """`FakeRecords` as a tier: sleeps each operation's latency, then does it."""

    def __init__(self, records: FakeRecords, arena: Arena, plan: FaultPlan, tier: Tier = Tier.SSD) -> None:
        self.tier = tier
        self._records = records
        self._arena = arena
        self._plan = plan
        self._serving = False
        self._faults = dict.fromkeys(Fault, 0)

    async def start(self) -> None:
        self._serving = True

    async def close(self) -> None:
        self._serving = False

    async def found(self) -> AsyncIterator[FoundBatch]:
        for batch in self._records.found():
            yield batch

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        verdict = await self._begin(Operation.WRITE)
        views = [self._arena.view(chunk.frame, chunk.length) for chunk in chunks]
        checksums = [self._arena.checksum(chunk.frame) for chunk in chunks]
        try:
            return self._records.write(block, views, checksums, verdict)
        except TierFault as fault:
            raise self._counted(fault) from fault

    async def read(self, block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncIterator[int]:
        verdict = await self._begin(Operation.READ)
        for number, chunk in enumerate(chunks):
            if not chunk.wanted:
                continue
            try:
                data, checksum = self._records.read(block, location, number, verdict)
            except TierFault as fault:
                raise self._counted(fault) from fault
            self._arena.view(chunk.frame, chunk.length)[:] = data
            self._arena.set_checksum(chunk.frame, checksum)
            yield number

    async def drop(self, block: BlockName, location: int) -> None:
        verdict = await self._begin(Operation.DROP)
        try:
            self._records.drop(block, location, verdict)
        except TierFault as fault:
            raise self._counted(fault) from fault

    @property
    def damaged_at_start(self) -> int:
        return self._records.damaged

    def status(self) -> dict[str, object]:
        return {
            "capacity_bytes": self._records.capacity_bytes,
            "used_bytes": self._records.used_bytes,
            "records": len(self._records.raw),
            "faults": {fault.value: count for fault, count in self._faults.items()},
        }

    async def _begin(self, operation: Operation) -> Verdict:
        if not self._serving:
            raise self._counted(TierFault(Fault.DOWN, "the tier is closed"))
        verdict = self._plan.verdict(operation)
        await asyncio.sleep(verdict.latency_ns / NANOSECONDS)
        return verdict

    def _counted(self, fault: TierFault) -> TierFault:
        self._faults[fault.fault] += 1
        return fault
