"""A connection is lost, the daemon lives on: what the worker may believe of its memory afterwards."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

import pytest

from flexkv_py.client import Client
from flexkv_py.client.aio import AsyncClient
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd import connection
from flexkvd.sessions import Session

from .conftest import GEOMETRY, DaemonThread, Worker

TOKENS = list(range(16 * 8))


class Gate:
    """While shut, every copy of the daemon stops at its frame."""

    def __init__(self, daemon: DaemonThread) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._view = daemon.parts.arena.view
        daemon.parts.arena.view = self._gated  # type: ignore[method-assign]

    def open(self) -> None:
        self._open.set()

    def _gated(self, frame: int, length: int) -> memoryview:
        self.reached.set()
        assert self._open.wait(10)
        return self._view(frame, length)


@pytest.fixture
def worker(daemon: DaemonThread) -> Iterator[Worker]:
    """A worker that has saved eight blocks."""
    with Client(daemon.socket, GEOMETRY, timeout_s=10) as client:
        worker = Worker(client)
        worker.fill(1)
        client.save(client.keys(TOKENS), worker.pages(0, 8), worker.memory).wait(timeout_s=5)
        yield worker


def lose_connection(client: Client) -> None:
    """As a network or a peer does it; the client comes back by itself with its next call."""
    link = client._link
    assert link is not None
    link._socket.shutdown(socket.SHUT_RDWR)


def sessions_of(daemon: DaemonThread) -> Callable[[], list[Session]]:
    return lambda: list(daemon.parts.sessions.by_number.values())


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def again(call: Callable[[], object]) -> None:
    """Call until the loss has been noticed and told."""
    try:
        call()
    except FlexKVError as error:
        if error.code is not ErrorCode.DAEMON_LOST:
            raise
        call()


@pytest.mark.parametrize("unregistering", [False, True])
def test_memory_registered_again_is_free_of_the_last_sessions_copies(
    daemon: DaemonThread, worker: Worker, unregistering: bool
) -> None:
    """After a loss, registration and fence wait for copies of the lost session, even of what it was unregistering."""
    gate, client = Gate(daemon), worker.client
    with ThreadPoolExecutor(2) as pool:
        client.load(client.keys(TOKENS), worker.pages(20, 8), worker.memory)
        assert gate.reached.wait(5)
        if unregistering:
            leaving = pool.submit(worker.memory.unregister)
            until(lambda: any(each.leaving for each in daemon.call(sessions_of(daemon))))
        lose_connection(client)
        back = pool.submit(again, worker.register if unregistering else lambda: client.fence(worker.memory))
        with pytest.raises(NotYetError):
            back.result(0.3)
        gate.open()
        back.result(5)
        if unregistering:
            assert isinstance(leaving.exception(5), FlexKVError)
    assert worker.block_bytes(27) == worker.block_bytes(7)
    worker.bytes[:] = bytes(len(worker.bytes))
    client.ping()
    assert not any(worker.bytes[:])
    until(lambda: [each.closed for each in daemon.call(sessions_of(daemon))] == [False])


def test_what_a_lost_connection_still_holds_is_not_carried_out(
    daemon: DaemonThread, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load still unread when its client hangs up never copies behind the fence of that client's next session."""
    monkeypatch.setattr(connection, "READ_BYTES", 512)  # as if much more had been sent before it
    client, stalled, go_on = worker.client, threading.Event(), threading.Event()

    def stall() -> None:
        stalled.set()
        assert go_on.wait(10)

    with ThreadPoolExecutor(1) as pool:
        standing = pool.submit(daemon.call, stall)
        assert stalled.wait(5)
        client.timeout_s = 0.05
        with pytest.raises(FlexKVError):
            client.match([bytes([each % 256]) * 16 for each in range(4096)])
        with pytest.raises(FlexKVError):
            client.load(client.keys(TOKENS), worker.pages(20, 8), worker.memory)
        lose_connection(client)
        client.timeout_s = 10
        go_on.set()
        standing.result(5)
        again(lambda: client.fence(worker.memory))
    worker.bytes[:] = bytes(len(worker.bytes))
    until(lambda: len(daemon.call(sessions_of(daemon))) == 1)
    client.fence(worker.memory)
    assert not any(worker.bytes[:])


def test_a_stopped_daemon_lets_go_of_pages_before_its_clients_hear_of_the_end(
    daemon: DaemonThread, worker: Worker
) -> None:
    """A drain that runs out of time while a copy runs closes the socket only when that copy has ended."""
    gate, client = Gate(daemon), worker.client
    ticket = client.load(client.keys(TOKENS), worker.pages(20, 8), worker.memory, deadline_s=60)
    assert gate.reached.wait(5)
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(lambda: [ticket.wait(), client.fence(worker.memory)])
        stopping = pool.submit(daemon.stop)
        until(lambda: daemon.parts.readiness.draining)
        daemon._loop.call_soon_threadsafe(daemon.daemon.stop)  # a second signal: wait for nothing
        with pytest.raises(NotYetError):
            lost.result(0.5)
        gate.open()
        assert isinstance(lost.exception(5), FlexKVError)
        worker.bytes[:] = bytes(len(worker.bytes))
        assert stopping.result(10) == 0
    assert not any(worker.bytes[:])


def test_a_fence_outlives_its_session(daemon: DaemonThread, worker: Worker) -> None:
    """When the daemon ends a session that fences, the fence still returns only when the copies have ended."""
    gate, client = Gate(daemon), worker.client
    client.load(client.keys(TOKENS), worker.pages(20, 8), worker.memory)
    assert gate.reached.wait(5)
    with ThreadPoolExecutor(1) as pool:
        fenced = pool.submit(client.fence, worker.memory)
        [session] = daemon.call(sessions_of(daemon))
        until(lambda: session.waiting == 1)
        daemon.call(session.connection.close)
        with pytest.raises(NotYetError):
            fenced.result(0.3)
        gate.open()
        assert fenced.result(5) is None
    assert worker.block_bytes(27) == worker.block_bytes(7)


def test_a_fence_of_the_asyncio_client_outlives_its_session(daemon: DaemonThread, worker: Worker) -> None:
    """As above; and a lease in `async with` ends with it."""
    asyncio.run(lose_the_session_of_a_fence(daemon, worker))
    assert worker.block_bytes(27) == worker.block_bytes(7)


async def lose_the_session_of_a_fence(daemon: DaemonThread, worker: Worker) -> None:
    layout = worker.layout
    async with AsyncClient(daemon.socket, GEOMETRY, timeout_s=10) as client:
        memory = await client.register_memory(
            worker.descriptor,
            bytes=layout.bytes,
            page_count=layout.page_count,
            page_tokens=layout.page_tokens,
            layout=layout.layers,
        )
        found = await client.match(client.keys(TOKENS), hold_s=60)
        assert found.lease is not None
        async with found.lease:
            assert daemon.call(lambda: len(daemon.parts.planner.state.leases)) == 1
        assert daemon.call(lambda: len(daemon.parts.planner.state.leases)) == 0
        gate = Gate(daemon)
        await client.load(client.keys(TOKENS), worker.pages(20, 8), memory)
        assert await asyncio.to_thread(gate.reached.wait, 5)
        fenced = asyncio.ensure_future(client.fence(memory))
        session = daemon.call(sessions_of(daemon))[-1]
        await asyncio.to_thread(until, lambda: session.waiting == 1)
        daemon.call(session.connection.close)
        assert (await asyncio.wait([fenced], timeout=0.3))[1]
        gate.open()
        await fenced
