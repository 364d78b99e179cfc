"""What a tier below DRAM promises, and the frames it moves bytes to and from.

A tier holds whole records, names each place by an integer of its own, and never decides: the planner
says what to write, read and drop. A fault is raised as `TierFault`; anything else raised is a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flexkv_py.core.messages import BlockName, Fault, FoundBlock, LostRecord, Tier
from flexkv_py.keys import NamespaceDigest


class TierFault(Exception):
    """A move failed in a way production must expect."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.detail = detail


@dataclass(slots=True)
class FrameSpan:
    """One chunk in the arena: its frame number and its length in bytes (a multiple of 4 KiB).

    One that is not `wanted` is there already, and others may be reading it: a read leaves its frame alone.
    """

    frame: int
    length: int
    wanted: bool = True


@dataclass(slots=True)
class FoundBatch:
    """Whole records of one namespace and shard, met at start."""

    namespace: NamespaceDigest
    shard: int
    record_bytes: int
    """Of each as it is stored: less than its block has in memory if it is compressed."""
    blocks: list[FoundBlock]
    chunk_bytes: tuple[int, ...] = ()
    """Length of each chunk, where the tier knows it (SSD headers tell, a listing by names does not)."""


class StoreListener(Protocol):
    """Hears what a store finds out by itself; each call returns at once."""

    def changed(self, up: bool, reason: str) -> None:
        """The tier went down whole, or came back."""
        ...

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        """These records are gone: their locations are stale from here on, a read of one is MISSING.

        Told before anything else can happen, or a save could be acknowledged for what is gone; and never of a
        record whose write has yet to return, or which `found` has yet to tell. A read that is under way gets
        all its bytes all the same.
        """
        ...

    def restored(self) -> None:
        """A disk that was full, and for which a write failed, has room again."""
        ...

    def appeared(self, batch: FoundBatch) -> None:
        """Records somebody else wrote, met after `found` had ended."""
        ...


class Wear(Protocol):
    """What was written since the store was made: records, with their headers and padding."""

    new_bytes: int
    rewritten_bytes: int

    @property
    def window_amplification(self) -> float:
        """(new + rewritten) / new of late."""
        ...


@runtime_checkable
class WearingStore(Protocol):
    """A store on flash, which each write wears."""

    @property
    def wear(self) -> Wear: ...


@runtime_checkable
class RemoteStore(Protocol):
    """A store behind a network, which may not answer."""

    def requests(self) -> dict[str, object]:
        """State of the breaker and counts of requests; costs nothing that grows with what is stored."""
        ...


@runtime_checkable
class VerifiableStore(Protocol):
    """A store that can check a record where it lies, without a frame to read it into."""

    async def verify(self, block: BlockName, location: int, lengths: Sequence[int]) -> None:
        """Read all of a record, whose chunks are of these lengths, and check it.

        Raises TierFault: CORRUPT unless every checksum holds and it is exactly this block's, MISSING when nothing is
        there, others when that cannot be told now.
        """
        ...


@runtime_checkable
class SharedStore(Protocol):
    """A store in which others write, too: a reset concerns more than the records the planner knows of."""

    def reset(self, namespace: NamespaceDigest) -> asyncio.Task[None]:
        """Serve nothing of what was written of this namespace so far, from this call on.

        The task ends when none of it is left. Drops of its records may still come, and find nothing.
        """
        ...


class TierStore(Protocol):
    """A tier below DRAM.

    Life: `start`, then `found` once to its end (others may run beside it), any number of `write`,
    `read`, `drop` at a time, then `close`.
    """

    tier: Tier

    async def start(self) -> None:
        """Take the lock, open, check. Raises FlexKVError (coded: locked, foreign, bucket missing …)."""
        ...

    def found(self) -> AsyncIterator[FoundBatch]:
        """What survived the last life, in bounded batches. A damaged record is skipped and counted."""
        ...

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        """Write one whole record from frames and return its location.

        When it returns, the record is durable against the death of this process and a later read
        returns these bytes. On failure nothing of it is ever readable. Raises TierFault.
        The checksums are those the arena keeps with the frames.
        """
        ...

    def read(self, block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncIterator[int]:
        """Read a record into frames; yields each wanted chunk's number once its checksum holds, in order.

        Header and first chunk come together, and the header alone before a later one. Raises TierFault:
        CORRUPT unless header and chunk are exactly this block's, MISSING when nothing is there. A frame's
        bytes are valid only once its chunk was yielded. The checksums go to the arena with the frames.
        """
        ...

    async def drop(self, block: BlockName, location: int) -> None:
        """Make a record unreadable, then free its place. Dropping what is gone is no error."""
        ...

    async def close(self) -> None:
        """End what runs, release the lock. Idempotent."""
        ...

    @property
    def damaged_at_start(self) -> int:
        """Records that `found` met and that are not whole: skipped, never served."""
        ...

    def status(self) -> dict[str, object]:
        """Facts for people: directory or bucket, I/O path, bytes used, counters of faults."""
        ...
