"""The blocking client against a real process behind a real socket."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexkv_py.client import Client, GoingAway, Outcome, PagedLayout, create_memory
from flexkv_py.client.session import DAEMON_MESSAGES_MAX
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT, keys_of_tokens, namespace_digest
from tests.leaks import open_files

from .conftest import GEOMETRY, HELD

EARLY_S_MAX = 0.01
"""The stand-in's loop counts whole milliseconds, so its timers may end a little early."""


def refused(code: ErrorCode):
    """Expect a FlexKVError with this code."""
    return pytest.raises(FlexKVError, match=rf"^\[{code.value}\]")


def register(client: Client, page_count: int = 16):
    """A paged memory of the test geometry."""
    layout = PagedLayout(GEOMETRY, page_count, page_tokens=16)
    descriptor = create_memory(layout.bytes)
    try:
        return client.register_memory(
            descriptor, bytes=layout.bytes, page_count=page_count, page_tokens=16, layout=layout.layers
        )
    finally:
        os.close(descriptor)


def test_a_turn_of_every_call(client):
    """Keys, match with a lease, register, save, wait, load by chunk, cancel, fence, release and unregister."""
    tokens = list(range(3 * 64 + 5))
    keys = client.keys(tokens)
    assert keys == keys_of_tokens(namespace_digest(GEOMETRY.fingerprint, "default", 0), tokens, 64)
    memory = register(client)
    saved = client.save(keys, range(12), memory, parent=ROOT, deadline_s=0.01).wait(timeout_s=2)
    assert saved.done
    assert saved.outcomes == [Outcome.LOADED]
    found = client.match(keys, hold_s=0.001)
    assert (found.length, found.runs[0].tier, found.runs[0].count) == (3, "dram", 3)
    ticket = client.load(keys, range(12), memory, deadline_s=5)
    assert not ticket.wait(chunk=client.chunk_count - 1).done
    ticket.cancel()
    assert ticket.wait().done
    client.fence(memory, [1, 2])
    client.prefetch(keys, deadline_s=0.001).wait()
    found.lease.release()
    memory.unregister()
    with refused(ErrorCode.UNKNOWN_MEMORY):
        client.fence(memory)


def test_three_threads_share_one_socket(client):
    """Replies that come out of order reach the thread that asked: 3 threads, 40 calls each, random delays."""

    def ask(thread: int) -> None:
        for number in range(40):
            keys = client.keys(range(64 * (1 + thread)), parent=bytes([number] * 16))
            assert client.match(keys, hold_s=((thread * 7 + number * 3) % 5) / 1000).length == 1 + thread
            client.ping()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(ask, range(3)))


def test_a_slow_call_does_not_hold_up_a_quick_one(client):
    """While one thread reads for a reply that takes a second, another's ping is answered at once."""
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(client.match, client.keys(range(64)), hold_s=1.0)
        time.sleep(0.05)
        for _ in range(20):
            client.ping()
        assert not slow.done()
        assert slow.result().length == 1


@pytest.mark.timing
def test_reading_passes_on_when_the_leader_is_done(client):
    """The thread that reads for all gets its reply first; the other two still get theirs, soon after they come."""
    keys, took_s = client.keys(range(64)), {}

    def ask(hold_s: float) -> None:
        start_s = time.monotonic()
        client.match(keys, hold_s=hold_s)
        took_s[hold_s] = time.monotonic() - start_s

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(ask, (0.1, 0.3, 0.5)))
    assert all(-EARLY_S_MAX < took - hold_s < 0.5 for hold_s, took in took_s.items()), took_s


@pytest.mark.timing
def test_a_late_reply_is_discarded(daemon):
    """A call past its deadline raises; its reply, when it comes, disturbs no later call, and its lease goes back."""
    with Client(daemon.path, GEOMETRY, timeout_s=0.2) as client:
        keys = client.keys(range(64))
        with refused(ErrorCode.DEADLINE_EXCEEDED):
            client.match(keys, hold_s=0.3)
        time.sleep(0.15)
        for _ in range(5):
            client.ping()
            assert client.match(keys).length == 1
        late = client._session._outstanding
        assert not late


@pytest.mark.timing
def test_a_follower_past_its_deadline_leaves_alone(daemon):
    """A deadline holds for who does not read, and the reader goes on undisturbed."""
    with Client(daemon.path, GEOMETRY, timeout_s=1.0) as client, ThreadPoolExecutor(2) as threads:
        keys = client.keys(range(64))
        leader = threads.submit(client.match, keys, hold_s=0.6)
        time.sleep(0.05)
        client.timeout_s = 0.1
        with refused(ErrorCode.DEADLINE_EXCEEDED):
            client.match(keys, hold_s=0.8)
        assert leader.result().length == 1


@pytest.mark.timing
def test_a_wait_keeps_to_its_own_time(client):
    """`wait` returns how far a ticket is when its time is over, and the end when it comes first."""
    memory = register(client)
    ticket = client.load(client.keys(range(64)), range(4), memory, deadline_s=0.4)
    start_s = time.monotonic()
    assert not ticket.wait(timeout_s=0.1).done
    assert 0.1 <= time.monotonic() - start_s < 0.3
    assert ticket.wait().done
    assert 0.4 - EARLY_S_MAX < time.monotonic() - start_s < 0.8
    assert ticket.wait(timeout_s=0).done


def test_a_long_wait_is_made_of_slices(client, monkeypatch):
    """A wait longer than one slice asks again, and still ends with its ticket."""
    monkeypatch.setattr("flexkv_py.client.requests.WAIT_SLICE_S", 0.05)
    ticket = client.prefetch(client.keys(range(64)), deadline_s=0.3)
    assert ticket.wait().done


def test_what_the_daemon_says_itself_waits_for_poll(client):
    """Messages of the daemon's own are kept in order for `poll`, at most so many, the newest of them."""
    client.flush(deadline_s=0.005)
    assert [message.reason for message in client.poll()] == ["0", "1", "2", "3", "4"]
    assert client.poll() == []
    too_many = DAEMON_MESSAGES_MAX + 10
    client.flush(deadline_s=too_many / 1000)
    kept = client.poll()
    assert len(kept) == DAEMON_MESSAGES_MAX
    assert isinstance(kept[-1], GoingAway)
    assert kept[-1].reason == str(too_many - 1)


def test_bad_input_names_cause_and_cure(client):
    """Wrong keys, pages, chunks, durations and descriptors are refused with a code before anything is sent."""
    memory, keys = register(client), client.keys(range(64))
    with refused(ErrorCode.BAD_KEY):
        client.match([b"short", bytes(27)])
    with refused(ErrorCode.BAD_ARGUMENT):
        client.load(keys, [1, 2, 3], memory)
    with refused(ErrorCode.PAGE_OUT_OF_RANGE):
        client.load(keys, [0, 1, 2, -3], memory)
    with refused(ErrorCode.BAD_ARGUMENT):
        client.prefetch(keys, deadline_s=-1)
    with refused(ErrorCode.BAD_ARGUMENT):
        client.prefetch(keys).wait(chunk=99)
    with refused(ErrorCode.BAD_ARGUMENT):
        client.keys([-1] * 64)
    with refused(ErrorCode.BAD_MEMORY):
        client.register_memory(9999, bytes=1, page_count=1, page_tokens=16)
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        client.match([bytes(16)] * 300_000)
    client.ping()


def test_the_daemons_refusal_reaches_the_caller(client):
    """A coded error of the daemon is raised with its code; the connection lives on."""
    layout = PagedLayout(GEOMETRY, 4, page_tokens=16)
    descriptor = create_memory(100)
    with refused(ErrorCode.BAD_MEMORY):
        client.register_memory(descriptor, bytes=layout.bytes, page_count=4, page_tokens=16, layout=layout.layers)
    os.close(descriptor)
    client.ping()


def test_a_path_too_long_and_a_missing_socket_say_so(tmp_path):
    """The kernel's limit is named with its cure; a missing socket names its path and how to start a daemon."""
    with refused(ErrorCode.BAD_SOCKET_PATH) as refusal:
        Client(tmp_path / ("x" * 120), GEOMETRY)
    assert "shorter" in refusal.value.message
    client = Client(str(tmp_path / "no-such.sock"), GEOMETRY)
    with refused(ErrorCode.DAEMON_LOST) as refusal:
        client.ping()
    assert "no-such.sock" in refusal.value.message
    assert "flexkvd" in refusal.value.message


def test_a_closed_client_stays_closed(daemon):
    """After `close` every call says so, also to a thread that is waiting."""
    client = Client(daemon.path, GEOMETRY)
    client.connect()
    keys = client.keys(range(64))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.match, keys, hold_s=5.0)
        time.sleep(0.05)
        client.close()
        with refused(ErrorCode.DAEMON_LOST):
            waiting.result(timeout=1)
    with refused(ErrorCode.CANCELLED):
        client.ping()
    client.close()


def test_a_forked_child_is_told_and_lets_go(daemon):
    """A child's call is refused with a code, its copies are closed, and the parent works on."""
    before = open_files(*HELD)
    client = Client(daemon.path, GEOMETRY)
    register(client)
    assert len(open_files(*HELD) - before) == 2
    child = os.fork()
    if child == 0:
        try:
            client.ping()
        except FlexKVError as error:
            os._exit(0 if error.code is ErrorCode.UNSUPPORTED and not open_files(*HELD) - before else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.ping()
    client.close()
