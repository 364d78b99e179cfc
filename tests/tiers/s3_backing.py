"""The real S3 server that all tests of a run share, and the contract suite's backing on it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from flexkv_py.core.messages import LostRecord
from flexkv_tiers.base import FoundBatch, TierStore
from flexkv_tiers.codec.choice import CodecChooser
from flexkv_tiers.codec.pool import CodecPool, TierCodec
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3 import S3Config, S3Store
from flexkvd.cli.s3server import S3Server


@cache
def shared_server() -> S3Server:
    """Started with the first test that needs it; its credentials are in the environment from then on."""
    directory = Path(tempfile.mkdtemp(prefix="flexkv-s3-"))
    server = S3Server(directory)
    server.start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)  # runs first
    os.environ.update(server.environment)
    return server


def patient(prefix: str) -> S3Config:
    """A prefix of the shared bucket, with timeouts that a busy machine does not meet."""
    return S3Config(
        "flexkv",
        prefix,
        endpoint_url=shared_server().endpoint_url,
        sign_payload=False,
        retry_count_max=3,
        silence_s=10.0,
    )


def impatient(prefix: str) -> S3Config:
    """For tests that wait for timeouts."""
    return replace(patient(prefix), connect_timeout_s=0.5, read_timeout_s=0.5, operation_timeout_s=2.0)


class Heard:
    """A `StoreListener` that keeps what it is told."""

    def __init__(self) -> None:
        self.changes: list[bool] = []
        self.reasons: list[str] = []
        self.gone: list[LostRecord] = []
        self.news: list[FoundBatch] = []

    def changed(self, up: bool, reason: str) -> None:
        self.changes.append(up)
        self.reasons.append(reason)

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        self.gone += records

    def restored(self) -> None:
        raise AssertionError("a bucket is no disk")

    def appeared(self, batch: FoundBatch) -> None:
        self.news.append(batch)


def run_life(config: S3Config, arena: Arena, scene: Callable[[S3Store], Awaitable[None]]) -> list[bool]:
    """One life of a store, from start to end; gives when it was down and up again."""
    heard = Heard()

    async def life() -> None:
        store = S3Store(config, arena, heard)
        try:
            await store.start()
            await scene(store)
        finally:
            await store.close()

    asyncio.run(life())
    return heard.changes


class S3Backing:
    """A prefix of the shared server's bucket; blocks that are written together share an object."""

    capacity_bytes: int | None = None
    pack_bytes = 8 << 20
    codec = ""

    def __init__(self, directory: Path, arena: Arena) -> None:
        self._config = replace(patient(directory.name), pack_bytes=self.pack_bytes)
        self._arena = arena
        self._stores: list[CompressingStore] = []

    def store(self) -> TierStore:
        if not self.codec:
            return S3Store(self._config, self._arena)
        store = CompressingStore(self._config, self._arena, self.codec)
        self._stores.append(store)
        return store

    @contextmanager
    def failing_writes(self) -> Iterator[None]:
        """The server is killed, and comes back."""
        shared_server().kill()
        try:
            yield
        finally:
            shared_server().start()

    def close(self) -> None:
        for store in self._stores:
            if not store.started:
                asyncio.run(store.pool.close())
        gc.collect()  # boto3's failed attempts on a server that is starting leave sockets in cycles


class CompressingStore(S3Store):
    """A store with a pool of its own, which lives as long as it does."""

    def __init__(self, config: S3Config, arena: Arena, codec: str) -> None:
        self.started = False
        self.pool = CodecPool(arena, processes=1, scratch_bytes=arena.segment_bytes, timeout_s=30)
        super().__init__(config, arena, codec=TierCodec(self.pool, CodecChooser(codec)))

    async def start(self) -> None:
        self.started = True
        await self.pool.start()
        await super().start()

    async def close(self) -> None:
        await super().close()
        await self.pool.close()


class CompressedS3Backing(S3Backing):
    """The same with every block compressed."""

    codec = "zstd"


class AloneS3Backing(S3Backing):
    """The same with an object for every block."""

    pack_bytes = 0
