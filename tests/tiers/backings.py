"""What the contract suite needs of each store: where its records outlive it, and how to make it fail."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierStore
from flexkv_tiers.codec.choice import CodecChooser
from flexkv_tiers.codec.pool import CodecPool, TierCodec
from flexkv_tiers.diskio import EngineName, open_disk_io
from flexkv_tiers.fake import FakeRecords, FakeStore, FaultPlan, Operation
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import SsdStore
from tests.tiers.s3_backing import AloneS3Backing, CompressedS3Backing, S3Backing

CAPACITY_BYTES = 4 << 20


class Backing(Protocol):
    """Records that outlive a store. Made as `Backing(directory, arena)`, closed at the test's end."""

    capacity_bytes: int | None
    """What fits; None for a tier without an end."""

    def store(self) -> TierStore:
        """A new store over the same records, not started: a new life of the daemon."""
        ...

    def failing_writes(self) -> AbstractContextManager[None]:
        """Within it, every write fails."""
        ...

    def close(self) -> None: ...


class FakeBacking:
    """Records in memory."""

    capacity_bytes: int | None = CAPACITY_BYTES

    def __init__(self, directory: Path, arena: Arena) -> None:
        self._arena = arena
        self._records = FakeRecords(CAPACITY_BYTES)
        self._plan = FaultPlan()

    def store(self) -> TierStore:
        return FakeStore(self._records, self._arena, self._plan)

    @contextmanager
    def failing_writes(self) -> Iterator[None]:
        self._plan.rates[Operation.WRITE] = {Fault.IO: 1.0}
        yield
        self._plan.rates[Operation.WRITE] = {}

    def close(self) -> None:
        pass


class SlowBacking(FakeBacking):
    """Records in memory behind a latency."""

    def __init__(self, directory: Path, arena: Arena) -> None:
        super().__init__(directory, arena)
        self._plan = FaultPlan(seed=1, latency_ns=(0, 3_000_000))


SEGMENT_BYTES = 266 << 12
"""Four records of 260 KiB, a header, two map pages, and room for a footer and a trailer."""


class SsdBacking:
    """A directory on a real disk."""

    capacity_bytes: int | None = 16 * (260 << 10)
    direct = True
    engine: EngineName = "auto"
    segments = (5,)
    """Of each directory; one of them is spare."""

    def __init__(self, directory: Path, arena: Arena) -> None:
        self._directories = [directory / f"tier-{number}" for number in range(len(self.segments))]
        self._arena = arena

    def store(self) -> TierStore:
        capacity_bytes = sum(self.segments) * SEGMENT_BYTES
        open_io = partial(open_disk_io, engine=self.engine, depth=8, direct=self.direct)
        return SsdStore(self._directories, capacity_bytes, self._arena, segment_bytes=SEGMENT_BYTES, open_io=open_io)

    @contextmanager
    def failing_writes(self) -> Iterator[None]:
        """The kernel refuses every write to a file beyond its first byte (EFBIG)."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def close(self) -> None:
        pass


class BufferedSsdBacking(SsdBacking):
    """The same without direct I/O, on the portable engine."""

    direct = False
    engine: EngineName = "aiofiles"


class StripedSsdBacking(SsdBacking):
    """Two directories, half of the segments in each; on threads, whatever else there is."""

    engine: EngineName = "threads"
    segments = (3, 3)


class CompressingSsdStore(SsdStore):
    """A store with a pool of its own, which lives as long as it does."""

    def __init__(self, directory: Path, arena: Arena, codec_name: str = "zstd") -> None:
        self.started = False
        self.pool = CodecPool(arena, processes=1, scratch_bytes=arena.segment_bytes, timeout_s=30)
        self.codec = TierCodec(self.pool, CodecChooser(codec_name))
        super().__init__(directory, 5 * SEGMENT_BYTES, arena, segment_bytes=SEGMENT_BYTES, codec=self.codec)

    async def start(self) -> None:
        self.started = True
        if self.codec.compresses:
            await self.pool.start()
        await super().start()

    async def close(self) -> None:
        await super().close()
        await self.pool.close()


class CompressedSsdBacking(SsdBacking):
    """The same with every block compressed; how many fit depends on them."""

    capacity_bytes = None

    def __init__(self, directory: Path, arena: Arena) -> None:
        super().__init__(directory, arena)
        self._stores: list[CompressingSsdStore] = []

    def store(self) -> TierStore:
        self._stores.append(CompressingSsdStore(self._directories[0], self._arena))
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            if not store.started:
                asyncio.run(store.pool.close())


BACKINGS: dict[str, Callable[[Path, Arena], Backing]] = {
    "fake": FakeBacking,
    "s3": S3Backing,
    "s3-alone": AloneS3Backing,
    "s3-compressed": CompressedS3Backing,
    "slow": SlowBacking,
    "ssd": SsdBacking,
    "ssd-buffered": BufferedSsdBacking,
    "ssd-compressed": CompressedSsdBacking,
    "ssd-striped": StripedSsdBacking,
}
"""Every store the contract suite runs on; a new tier is one line here."""
