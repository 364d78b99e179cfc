"""Gates that the daemon does not open, because it is killed, hangs, or never learnt to: then the client does."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from flexkv_py.client import Client, Gates, GateState
from flexkv_py.client.aio import AsyncClient
from flexkv_py.client.gates import GATE_GRACE_S, GatedLoads
from flexkv_py.errors import ErrorCode
from flexkv_py.wire.gates import gate_value

from .conftest import GEOMETRY, Daemon
from .test_aio import refusal_of
from .test_aio import register as register_async
from .test_client import refused, register

CHUNKS = range(GEOMETRY.chunk_count)
ARRAY_BYTES = 4 * GEOMETRY.chunk_count
ARRAYS = 16


def arrays() -> list[Gates]:
    """Where they lie is of no matter to a daemon that never opens one."""
    memory = bytearray(ARRAYS * ARRAY_BYTES)
    return [Gates.mapped(memory, number * ARRAY_BYTES, len(CHUNKS)) for number in range(ARRAYS)]


def load_all(client: Client, every: list[Gates], deadline_s: float = 30.0):
    """A load on each array; its tickets."""
    keys, memory = client.keys(range(64)), register(client)
    tickets = [client.load(keys, range(4), memory, deadline_s, gates) for gates in every]
    assert all_are(every, GateState.SHUT)
    return tickets


def all_are(every: list[Gates], state: GateState) -> bool:
    return all(gates.state(chunk) is state for gates in every for chunk in CHUNKS)


def opened_after_s(every: list[Gates], since_s: float) -> float:
    """How long it takes from `since_s` on until all have failed."""
    for gates in every:
        for chunk in CHUNKS:
            assert gates.wait(chunk, timeout_s=10) is GateState.FAILED
    return time.monotonic() - since_s


@pytest.mark.timing
def test_a_killed_daemon_opens_all_gates_at_once(daemon: Daemon, client: Client) -> None:
    """SIGKILL under sixteen gated loads: every gate open as failed within a second, though nobody calls."""
    every = arrays()
    tickets = load_all(client, every)
    killed_s = time.monotonic()
    daemon.kill()
    assert opened_after_s(every, killed_s) < 1
    for ticket in tickets:
        with refused(ErrorCode.DAEMON_LOST):
            ticket.wait()


def stopped(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("hang", [stopped, lambda _: None], ids=["stopped", "negligent"])
def test_a_daemon_that_leaves_gates_shut_beyond_the_deadline_is_lost(
    daemon: Daemon, client: Client, hang: Callable[[Daemon], None]
) -> None:
    """Stopped, or alive without opening them: no sooner than the deadline, not long after it, and tickets are void."""
    every = arrays()
    begun_s = time.monotonic()
    tickets = load_all(client, every, deadline_s=0.2)
    hang(daemon)
    assert opened_after_s(every, begun_s) >= 0.2 + GATE_GRACE_S
    with refused(ErrorCode.DAEMON_LOST):
        tickets[0].wait()
    daemon.process.send_signal(signal.SIGCONT)
    client.connect()
    client.ping()


@pytest.mark.timing
def test_a_stopped_daemon_keeps_gates_shut_for_less_than_a_second_beyond_the_deadline(
    daemon: Daemon, client: Client
) -> None:
    """Counted from the deadline of the load."""
    every = arrays()
    begun_s = time.monotonic()
    load_all(client, every, deadline_s=0.2)
    stopped(daemon)
    assert opened_after_s(every, begun_s) < 0.2 + 1
    daemon.process.send_signal(signal.SIGCONT)


def test_a_shorter_deadline_is_kept_beside_longer_ones(daemon: Daemon, client: Client) -> None:
    """The watch wakes for whichever comes first; closing the client then opens what is left."""
    every = arrays()
    load_all(client, every[:2], deadline_s=60)
    load_all(client, every[2:3], deadline_s=0.05)
    assert every[2].wait(0, timeout_s=10) is GateState.FAILED
    client.connect()
    load_all(client, every[:3], deadline_s=60)
    client.close()
    assert all_are(every[:3], GateState.FAILED)


def test_loads_whose_gates_are_open_lose_no_connection(client: Client) -> None:
    """Opened by somebody before their deadline: nothing happens then, and the arrays serve again."""
    every = arrays()
    for turn in (1, 2):
        load_all(client, every, deadline_s=1.0)
        for gates in every:
            for chunk in CHUNKS:
                gates._words.write(chunk, gate_value(turn))
    time.sleep(1.0 + GATE_GRACE_S + 0.1)
    assert all_are(every, GateState.OPEN)
    assert client._link is not None
    assert not client._link.lost


class Unreachable:
    """Words of a device that is gone."""

    def __init__(self) -> None:
        self.fails = False

    def read(self, chunk: int) -> int:
        if self.fails:
            raise RuntimeError("no device any more")
        return 0

    def write(self, chunk: int, value: int) -> None:
        self.read(chunk)


def test_words_that_cannot_be_reached_keep_no_other_gate_shut(
    daemon: Daemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """What an embedder's own function raises is logged, and the loss goes on."""
    words = Unreachable()
    every = [Gates(0, len(CHUNKS), words), *arrays()]
    tickets = load_all(client, every)
    words.fails = True
    daemon.kill()
    opened_after_s(every[1:], time.monotonic())
    with refused(ErrorCode.DAEMON_LOST):
        tickets[0].wait()
    assert "could not be opened" in caplog.text


def test_words_that_cannot_be_reached_leave_others_watched(caplog: pytest.LogCaptureFixture) -> None:
    """What they raise at their deadline is logged, and a daemon that leaves other gates shut is lost at theirs."""
    words, loads = Unreachable(), GatedLoads()
    loads.begin(Gates(0, len(CHUNKS), words), 1.0)
    loads.begin(arrays()[0], 2.0)
    words.fails = True
    assert not loads.overdue(1.5)
    assert loads.overdue(2.5)
    assert "could not be looked at" in caplog.text


def test_a_daemon_that_knows_no_gates_is_asked_for_none(daemon: Daemon) -> None:
    """It would ignore them, and streams would wait for ever, or pages be read before they are written."""
    gates = arrays()[0]
    with Client(daemon.path, GEOMETRY, token="old") as client:
        keys, memory = client.keys(range(64)), register(client)
        with refused(ErrorCode.UNSUPPORTED):
            client.load(keys, range(4), memory, gates=gates)
        with refused(ErrorCode.UNSUPPORTED):
            client.save(keys, range(4), memory, after=bytes(64))
        client.load(keys, range(4), memory, deadline_s=0.01).wait()
    assert all(gates.is_open(chunk) for chunk in CHUNKS)


def test_a_gated_load_that_was_never_sent_costs_no_connection(daemon: Daemon) -> None:
    """Whoever gives up before a byte is out opens the gates: else the daemon would be blamed for leaving them shut."""
    gates, late, cancelled = arrays()[:3]
    over_s = 0.05 + GATE_GRACE_S
    with Client(daemon.path, GEOMETRY, timeout_s=2.0) as client:
        keys, memory, life = client.keys(range(64)), register(client), client._session.life
        client.load(keys, range(4), memory, 30.0, gates)
        client.timeout_s = 0.01  # for this call alone
        with client._link._sending, refused(ErrorCode.DEADLINE_EXCEEDED):  # as if another thread's frame were half out
            client.load(keys, range(4), memory, 0.05, late)
        assert all_are([late], GateState.FAILED)
        time.sleep(over_s)
        client.timeout_s = 2.0
        client.ping()
        assert (client._session.life, all_are([gates], GateState.SHUT)) == (life, True)

    async def run() -> None:
        async with AsyncClient(daemon.path, GEOMETRY) as client:
            keys, memory, life = client.keys(range(64)), await register_async(client), client._session.life
            async with client._link._sending:
                load = asyncio.create_task(client.load(keys, range(4), memory, 0.05, cancelled))
                await asyncio.sleep(0.01)
                load.cancel()
                await asyncio.wait([load])
            assert load.cancelled()
            assert all_are([cancelled], GateState.FAILED)
            await asyncio.sleep(over_s)
            await client.ping()
            assert client._session.life == life

    asyncio.run(run())


def test_the_end_of_one_load_opens_no_gate_of_the_next() -> None:
    """A thread that learns of its load's end late, when another has begun the next on the same gates, leaves them."""
    loads, gates = GatedLoads(), arrays()[0]
    loads.begin(gates, 1.0)
    first = gates.value
    loads.lose()
    loads.begin(gates, 2.0)
    loads.give_up(gates, first)
    assert (all_are([gates], GateState.SHUT), loads.next_check_s) == (True, 2.0)


def test_the_asyncio_client_opens_gates_too(daemon: Daemon) -> None:
    """A killed daemon, one that leaves them shut, and one that knows none."""

    async def run() -> None:
        every = arrays()
        async with AsyncClient(daemon.path, GEOMETRY) as client:
            keys, memory = client.keys(range(64)), await register_async(client)
            overdue = await client.load(keys, range(4), memory, deadline_s=0.05, gates=every[0])
            assert await every[0].wait_async(0, timeout_s=0) is GateState.SHUT
            assert await every[0].wait_async(0, timeout_s=10) is GateState.FAILED
            assert await refusal_of(overdue.wait()) is ErrorCode.DAEMON_LOST
            await client.connect()
            await client.load(keys, range(4), memory, deadline_s=30, gates=every[0])
            await client.load(keys, range(4), memory, deadline_s=20, gates=every[1])
            os.kill(daemon.process.pid, signal.SIGKILL)
            for gates in every[:2]:
                assert await gates.wait_async(len(CHUNKS) - 1, timeout_s=10) is GateState.FAILED
        daemon.restart()
        async with AsyncClient(daemon.path, GEOMETRY, token="old") as client:
            keys, memory = client.keys(range(64)), await register_async(client)
            load = client.load(keys, range(4), memory, gates=every[0])
            assert await refusal_of(load) is ErrorCode.UNSUPPORTED
            save = client.save(keys, range(4), memory, after=bytes(64))
            assert await refusal_of(save) is ErrorCode.UNSUPPORTED

    asyncio.run(run())
