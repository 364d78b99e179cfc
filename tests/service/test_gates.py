"""Gates over the real socket: opened by the daemon behind its copies, or as failed whatever becomes of the load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client, Gates, GateState
from flexkv_py.client.aio import AsyncClient
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.gates import GENERATIONS, gate_value
from flexkv_py.wire.messages import GateArray, Load, Opened

from .conftest import GEOMETRY, PAGE_TOKENS, DaemonThread
from .gated import ARRAY_BYTES, CHUNKS, GatedWorker, states
from .test_reconnect import Gate as FrameGate
from .test_reconnect import lose_connection, sessions_of, until

BLOCKS = 8
TOKENS = list(range(16 * BLOCKS))
SAVED, LOADED = range(BLOCKS), range(20, 20 + BLOCKS)
OPEN, FAILED, SHUT = ([state] * len(CHUNKS) for state in (GateState.OPEN, GateState.FAILED, GateState.SHUT))


@pytest.fixture
def worker(daemon: DaemonThread) -> Iterator[GatedWorker]:
    """A worker that has saved eight blocks."""
    with Client(daemon.socket, GEOMETRY) as client:
        yield saved(GatedWorker(client))


def saved(worker: GatedWorker, ack: str = "dram") -> GatedWorker:
    worker.fill(1)
    keys = worker.client.keys(TOKENS)
    done = worker.client.save(keys, worker.pages(0, BLOCKS), worker.memory, ack=ack).wait(timeout_s=10)
    assert set(done.outcomes) == {Outcome.STORED}
    return worker


def load(worker: GatedWorker, deadline_s: float = 10.0, gates: Gates | None = None):
    client, pages = worker.client, worker.pages(LOADED[0], BLOCKS)
    return client.load(client.keys(TOKENS), pages, worker.memory, deadline_s, gates or worker.gates)


def check_as_they_open(worker: GatedWorker, gates: Gates) -> None:
    """Spin on every gate in turn: the moment it opens its chunk of every block is there."""
    expected = worker.rows(SAVED)
    for chunk in CHUNKS:
        while not gates.is_open(chunk):
            pass
        assert gates.state(chunk) is GateState.OPEN
        assert [worker.chunk_bytes(block, chunk) for block in LOADED] == expected[chunk]


def test_a_gate_opens_when_its_chunk_is_there(daemon: DaemonThread, worker: GatedWorker) -> None:
    """Shut while no copy has run, then open in the order of the layers, each with the right rows of every block."""
    frames = FrameGate(daemon)
    ticket = load(worker)
    assert frames.reached.wait(10)
    assert states(worker.gates) == SHUT
    assert worker.gates.wait(0, timeout_s=0.01) is GateState.SHUT
    threading.Timer(0.01, frames.open).start()
    check_as_they_open(worker, worker.gates)
    assert ticket.wait(timeout_s=10).length == BLOCKS
    assert states(worker.gates) == OPEN


def test_gates_of_blocks_that_come_from_ssd_open_behind_the_last_of_them(
    start: Callable[..., DaemonThread], tmp_path: Path
) -> None:
    """Chunks of eight blocks land one by one, each copied by itself: a gate waits for all of them."""
    tables = {"ssd": {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}}
    (tmp_path / "ssd").mkdir()
    daemon = start(**tables)
    with Client(daemon.socket, GEOMETRY) as client:
        saved(GatedWorker(client), ack="ssd")
    assert daemon.stop() == 0
    with Client(start(**tables).socket, GEOMETRY) as client:
        worker = GatedWorker(client)
        worker.fill(1)
        until(lambda: client.match(client.keys(TOKENS)).length == BLOCKS)
        ticket = load(worker)
        check_as_they_open(worker, worker.gates)
        assert set(ticket.wait(timeout_s=10).tiers) == {2}


def test_gates_are_used_again_past_the_last_generation(worker: GatedWorker) -> None:
    """A hundred loads on one array, across the wrap of its numbers: open each time, and shut before."""
    gates, words = worker.gates, memoryview(worker.bytes).cast("I")
    gates._generation = GENERATIONS - 50
    for chunk in CHUNKS:
        words[gates.offset // 4 + chunk] = gate_value(GENERATIONS - 50)
    for _ in range(100):
        ticket = load(worker)
        assert [gates.wait(chunk, timeout_s=10) for chunk in CHUNKS] == OPEN
        assert ticket.wait(timeout_s=10).done
    assert gates.value == gate_value(50)
    words.release()


def test_loads_with_gates_of_their_own_run_side_by_side(daemon: DaemonThread) -> None:
    """Sixteen loads at a time, each told by its own array; one array serves one load at a time."""
    with Client(daemon.socket, GEOMETRY) as client:
        worker = saved(GatedWorker(client, arrays=16))
        frames = FrameGate(daemon)
        tickets = [load(worker, gates=gates) for gates in worker.arrays]
        with pytest.raises(FlexKVError, match="has not opened them all") as caught:
            load(worker)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
        frames.open()
        for ticket, gates in zip(tickets, worker.arrays, strict=True):
            assert ticket.wait(timeout_s=10).length == BLOCKS
            assert states(gates) == OPEN


def test_a_load_that_falls_short_opens_its_gates_as_failed(worker: GatedWorker) -> None:
    """Nothing of it is known, or only the first blocks are: who waits is let in, and told."""
    client = worker.client
    for tokens in ([900 + token for token in TOKENS], TOKENS[:48] + [900 + token for token in TOKENS[48:]]):
        pages = worker.pages(LOADED[0], BLOCKS)
        ticket = client.load(client.keys(tokens), pages, worker.memory, gates=worker.gates)
        assert [worker.gates.wait(chunk, timeout_s=10) for chunk in CHUNKS] == FAILED
        assert Outcome.MISS in ticket.wait(timeout_s=10).outcomes
    assert load(worker).wait(timeout_s=10).length == BLOCKS
    assert states(worker.gates) == OPEN


@pytest.mark.parametrize("end", ["cancel", "deadline", "close", "loss"])
def test_a_load_that_ends_before_its_copies_opens_its_gates_as_failed(
    daemon: DaemonThread, worker: GatedWorker, end: str
) -> None:
    """Though the copies still hang: nobody waits for them. Copies that end later open nothing again."""
    frames = FrameGate(daemon)
    ticket = load(worker, deadline_s=0.2 if end == "deadline" else 10)
    assert frames.reached.wait(10)
    match end:
        case "cancel":
            ticket.cancel()
        case "deadline":
            assert Outcome.LATE in ticket.wait(timeout_s=10).outcomes
        case "close":
            worker.client.close()
        case "loss":
            lose_connection(worker.client)
    assert [worker.gates.wait(chunk, timeout_s=10) for chunk in CHUNKS] == FAILED
    words = memoryview(worker.bytes)[worker.gates.offset :].cast("I")
    if end in ("close", "loss"):
        until(lambda: all(session.closed for session in sessions_of(daemon)()))
    daemon.call(lambda: None)
    for chunk in CHUNKS:
        words[chunk] = 77  # whoever writes once more is found out
    frames.open()
    until(lambda: not daemon.call(lambda: sum(daemon.parts.executor._lanes.running(each) for each in all_of(daemon))))
    assert list(words) == [77] * len(CHUNKS)
    words.release()


def all_of(daemon: DaemonThread):
    sessions = daemon.parts.sessions.by_number.values()
    return [memory.mapping for session in sessions for memory in session.memories.values()]


def lost(client: Client) -> bool:
    return client._link is None or client._link.lost


def test_gates_are_used_again_over_a_new_connection(daemon: DaemonThread, worker: GatedWorker) -> None:
    """After a loss the daemon's old copies have ended before the memory is registered again: the next load is right."""
    frames = FrameGate(daemon)
    load(worker)
    assert frames.reached.wait(10)
    lose_connection(worker.client)
    assert worker.gates.wait(0, timeout_s=10) is GateState.FAILED
    threading.Timer(0.05, frames.open).start()
    until(lambda: lost(worker.client))  # the daemon may have been the first to notice
    worker.client.connect()
    ticket = load(worker)
    assert [worker.gates.wait(chunk, timeout_s=10) for chunk in CHUNKS] == OPEN
    assert ticket.wait(timeout_s=10).length == BLOCKS


def test_the_asyncio_client_has_the_same_gates(daemon: DaemonThread, worker: GatedWorker) -> None:
    """Opened by the daemon, and by the client where the connection is lost."""

    async def run() -> None:
        async with AsyncClient(daemon.socket, GEOMETRY) as client:
            memory = await client.register_memory(
                worker.descriptor,
                bytes=worker.size_bytes,
                page_count=worker.layout.page_count,
                page_tokens=PAGE_TOKENS,
                layout=worker.layout.layers,
            )
            keys, pages = client.keys(TOKENS), worker.pages(LOADED[0], BLOCKS)
            ticket = await client.load(keys, pages, memory, gates=worker.gates)
            assert [await worker.gates.wait_async(chunk, timeout_s=10) for chunk in CHUNKS] == OPEN
            assert (await ticket.wait()).length == BLOCKS
            frames = FrameGate(daemon)
            ticket = await client.load(keys, pages, memory, gates=worker.gates)
            assert client._link is not None
            client._link.lose("the test wants it")
            assert states(worker.gates) == FAILED
            with pytest.raises(FlexKVError) as caught:
                await ticket.wait()
            assert caught.value.code is ErrorCode.DAEMON_LOST
            frames.open()

    asyncio.run(run())


HOSTILE = {
    "not aligned": lambda end: GateArray(end + 2, 1),
    "before the memory": lambda end: GateArray(-ARRAY_BYTES, 1),
    "behind the memory": lambda end: GateArray(end + 4, 1),
    "far behind it": lambda end: GateArray(1 << 62, 1),
    "in the first page": lambda end: GateArray(0, 1),
    "in the last page": lambda end: GateArray(end - 4, 1),
    "generation too large": lambda end: GateArray(end, GENERATIONS),
    "generation below zero": lambda end: GateArray(end, -1),
}


@pytest.mark.parametrize("wrong", HOSTILE.values(), ids=HOSTILE.keys())
def test_gates_that_lie_are_refused(worker: GatedWorker, wrong: Callable[[int], GateArray]) -> None:
    """With cause and cure, before anything is written; the session goes on."""
    client = worker.client
    keys, pages = b"".join(client.keys(TOKENS)), worker.memory.pack_pages(worker.pages(LOADED[0], BLOCKS), BLOCKS)
    before = worker.bytes[:]
    with pytest.raises(FlexKVError, match=": ") as caught:
        client._ask_on(worker.memory, lambda name: Load(0, keys, pages, name, 0, wrong(worker.layout.bytes)), Opened)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    client.ping()
    assert worker.bytes[:] == before


def test_a_refused_load_leaves_no_gate_shut(worker: GatedWorker) -> None:
    """The client opens what the daemon never heard of: bad arguments, too many gates, no deadline to be late by."""
    client = worker.client
    keys, pages = client.keys(TOKENS), worker.pages(LOADED[0], BLOCKS)
    with pytest.raises(FlexKVError) as caught:
        client.load(keys, pages[:-1] + pages[:1], worker.memory, gates=worker.gates)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert states(worker.gates) == FAILED
    with pytest.raises(FlexKVError, match="deadline_s"):
        client.load(keys, pages, worker.memory, deadline_s=0, gates=worker.gates)
    more = Gates.mapped(bytearray(ARRAY_BYTES + 4), 0, len(CHUNKS) + 1)
    with pytest.raises(FlexKVError, match="one for each chunk"):
        client.load(keys, pages, worker.memory, gates=more)
    assert load(worker).wait(timeout_s=10).length == BLOCKS
    assert states(worker.gates) == OPEN


@pytest.mark.parametrize("buffer", [bytes(64), bytearray(8), bytearray(0)])
def test_gates_need_memory_that_can_be_written(buffer: bytes) -> None:
    """Too short, or read-only: refused before a load is lost on it."""
    with pytest.raises(FlexKVError, match="writable") as caught:
        Gates.mapped(memoryview(buffer), 0, len(CHUNKS))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_memory_of_the_host_has_no_events(worker: GatedWorker) -> None:
    """A save that would wait for one is refused: on the host nothing could wait."""
    client = worker.client
    with pytest.raises(FlexKVError, match="waits for no event") as caught:
        client.save(client.keys(TOKENS), worker.pages(0, BLOCKS), worker.memory, after=bytes(64))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    client.ping()
