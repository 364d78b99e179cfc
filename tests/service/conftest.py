"""A whole daemon on a thread of the test's process, and real clients of it over real Unix sockets."""

import asyncio
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.client.handles import Memory
from flexkv_py.geometry import Geometry, Plane
from flexkv_tiers.memory import WorkerMemory
from flexkvd import devices
from flexkvd.config import Config, parse_config
from flexkvd.daemon import Daemon
from flexkvd.parts import Parts, make_parts
from tests import invariants
from tests.tiers.host_driver import HostDriver

GEOMETRY = Geometry(
    planes=(Plane("kv", tuple(range(4)), 128), Plane("index", tuple(range(4)), 32)),
    tokens_per_block=16,
    chunk_bytes_min=1024,
    chunk_count_max=4,
)
PAGE_TOKENS = 8
PAGES_PER_BLOCK = GEOMETRY.tokens_per_block // PAGE_TOKENS


class DaemonThread:
    """A daemon that serves on a loop of its own; everything but signals is the real thing."""

    def __init__(self, tmp_path: Path, **tables: dict[str, object]) -> None:
        self.socket = tmp_path / "worker.sock"
        self.admin = tmp_path / "admin.sock"
        values: dict[str, Any] = {
            "daemon": {"socket": str(self.socket), "drain_s": 2.0},
            "api": {"socket": ""},
            "dram": {"bytes": "16MiB", "segment_bytes": "4MiB", "huge_pages": False},
        }
        for name, table in tables.items():
            values[name] = values.get(name, {}) | table
        self.config: Config = parse_config(values)
        self.status: int | None = None
        self.failure: BaseException | None = None
        self.parts: Parts
        self.daemon: Daemon
        self._loop: asyncio.AbstractEventLoop
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._up.result(10)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the daemon's loop and return what it returns."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(10)

    def mappings(self) -> list[WorkerMemory]:
        """What it maps of its workers now."""
        sessions = self.call(lambda: list(self.parts.sessions.by_number.values()))
        return [memory.mapping for session in sessions for memory in session.memories.values()]

    def stop(self) -> int | None:
        """Drain; the exit status."""
        if self._thread.is_alive():
            self.call(lambda: invariants.check(self.parts.planner))
            self._loop.call_soon_threadsafe(self.daemon.stop)
        self.join()
        return self.status

    def join(self) -> None:
        """Wait for the end, whatever brings it about."""
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            try:
                self.status = runner.run(self._serve())
            except BaseException as error:
                self.failure = error
                if not self._up.done():
                    self._up.set_exception(error)

    async def _serve(self) -> int:
        async with AsyncExitStack() as stack:
            self.parts = await make_parts(self.config, stack)
            self.daemon = Daemon(self.config, self.parts)
            self._loop.call_soon(self._up.set_result, None)
            return await self.daemon.run()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DaemonThread]]:
    """Start daemons with tables of the test's own; the invariants are checked when they stop."""
    daemons: list[DaemonThread] = []

    def start(**tables: dict[str, object]) -> DaemonThread:
        daemons.append(DaemonThread(tmp_path, **tables))
        return daemons[-1]

    yield start
    for daemon in daemons:
        assert daemon.stop() == 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """What daemons of this test find instead of libcuda."""
    driver = HostDriver()
    monkeypatch.setattr(devices, "_open_driver", lambda table: (driver, None))
    return driver


@pytest.fixture
def daemon(start: Callable[..., DaemonThread]) -> DaemonThread:
    return start()


@pytest.fixture
def connect(daemon: DaemonThread) -> Iterator[Callable[..., Client]]:
    """Connected clients of the daemon, closed at the end."""
    clients: list[Client] = []

    def connect(**options: Any) -> Client:
        clients.append(Client(daemon.socket, GEOMETRY, **options))
        clients[-1].connect()
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


class Worker:
    """A client with paged KV of its own in a sealed memfd, whose bytes the test can see and set."""

    def __init__(
        self, client: Client, block_count: int = 64, geometry: Geometry = GEOMETRY, spare_bytes: int = 0
    ) -> None:
        """`spare_bytes` lie behind the pages."""
        self.client = client
        self.layout = PagedLayout(geometry, page_count=block_count * PAGES_PER_BLOCK, page_tokens=PAGE_TOKENS)
        self.size_bytes = self.layout.bytes + spare_bytes
        self.descriptor = create_memory(self.size_bytes)
        weakref.finalize(self, os.close, self.descriptor)
        self.bytes = mmap.mmap(self.descriptor, self.size_bytes)
        self.memory = self.register()

    def register(self) -> Memory:
        """Once more, should the first registration be gone."""
        return self.client.register_memory(
            self.descriptor,
            bytes=self.size_bytes,
            page_count=self.layout.page_count,
            page_tokens=PAGE_TOKENS,
            layout=self.layout.layers,
        )

    def pages(self, first_block: int, block_count: int) -> list[int]:
        return list(range(first_block * PAGES_PER_BLOCK, (first_block + block_count) * PAGES_PER_BLOCK))

    def fill(self, seed: int) -> bytes:
        """Put bytes that depend on the seed everywhere; returns them."""
        import random

        content = random.Random(seed).randbytes(self.layout.bytes)
        self.bytes[: len(content)] = content
        return content

    def block_bytes(self, block: int) -> bytes:
        """All rows of one block's pages, whatever the layout."""
        parts = []
        for layer in self.layout.layers:
            for page in self.pages(block, 1):
                start = layer.offset + page * layer.page_stride
                parts.append(self.bytes[start : start + layer.page_bytes])
        return b"".join(parts)
