"""What becomes of a client when its daemon is lost: coded errors at once, then a new life by itself."""

import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexkv_py.client import Client
from flexkv_py.client.link import Link
from flexkv_py.client.rows import REPORTS_UNSENT_MAX
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import HEAT_ENTRY_BYTES, REPORT_PAGES_MAX
from tests.leaks import threads

from .conftest import GEOMETRY
from .echo_daemon import HANG_UP, SAY_FAREWELL, STOP_READING, TALK_NONSENSE
from .test_client import refused, register


def ends_with(code: ErrorCode, call, *arguments, **named) -> float:
    """Make a call that must fail with `code`; returns when it did."""
    with refused(code):
        call(*arguments, **named)
    return time.monotonic()


@pytest.mark.timing
def test_a_killed_daemon_fails_every_waiting_thread_at_once(daemon, client):
    """SIGKILL while three threads wait: each gets DAEMON_LOST in under a second, and the next life is new."""
    memory, keys = register(client), client.keys(range(64))
    boot, name = client.boot, memory.registration.handle.id
    lease = client.match(keys, hold_s=0.001).lease
    ticket = client.load(keys, range(4), memory, deadline_s=30)
    with ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(ends_with, ErrorCode.DAEMON_LOST, ticket.wait),
            threads.submit(ends_with, ErrorCode.DAEMON_LOST, ticket.wait, timeout_s=20),
            threads.submit(ends_with, ErrorCode.DAEMON_LOST, client.match, keys, hold_s=1.9),
        ]
        time.sleep(0.1)
        killed_s = time.monotonic()
        daemon.kill()
        assert all(future.result() - killed_s < 1 for future in waiting)
    daemon.start()
    client.ping()
    assert client.boot != boot
    assert memory.registration.handle.life == client._session.life
    assert client.load(keys, range(4), memory, deadline_s=0.01).wait().done
    assert memory.registration.handle.id != name
    ends_with(ErrorCode.DAEMON_LOST, ticket.wait)
    ends_with(ErrorCode.DAEMON_LOST, ticket.cancel)
    ends_with(ErrorCode.DAEMON_LOST, lease.release)


def test_a_loss_is_noticed_while_nobody_calls(daemon, client):
    """The watcher alone ends the connection: a ticket is void without any call to the daemon."""
    ticket = client.prefetch(client.keys(range(64)))
    daemon.kill()
    deadline_s = time.monotonic() + 10
    while not client._link.lost:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    ends_with(ErrorCode.DAEMON_LOST, ticket.wait)


def test_a_connection_that_ends_before_the_greeting_is_lost_at_once(client):
    """The daemon dies between accepting and the hello: DAEMON_LOST, long before the call's deadline."""
    ours, theirs = socket.socketpair()
    client.close()
    link = Link(ours, client._session, threading.Lock())
    theirs.close()
    link._watcher.join()
    deadline_s = time.monotonic() + 60
    ends_with(ErrorCode.DAEMON_LOST, link.greet, deadline_s)
    assert time.monotonic() < deadline_s - 30


@pytest.mark.timing
def test_attempts_are_spaced_by_the_back_off(daemon, client):
    """While no daemon answers, calls within the back-off fail at once; after it, one of them tries and succeeds."""
    daemon.kill()
    start_s = time.monotonic()
    messages = []
    while time.monotonic() - start_s < 0.5:
        with refused(ErrorCode.DAEMON_LOST) as refusal:
            client.ping()
        messages.append(refusal.value.message)
        time.sleep(0.002)
    tried = [message for message in messages if "next connection is tried in" not in message]
    assert 3 <= len(tried) <= 6  # the loss itself, then about 0, 50, 150 and 350 ms
    daemon.start()
    client.connect()
    client.ping()


def test_many_threads_make_one_new_connection(daemon, client):
    """After a restart eight threads call at once: all succeed, over one socket and one watcher."""
    older = threads()
    daemon.restart()
    time.sleep(0.1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: client.ping(), range(8)))
    assert [thread.name for thread in threads() - older].count("flexkv-hang-up") == 1


@pytest.mark.parametrize("misdeed", [HANG_UP, TALK_NONSENSE])
def test_a_daemon_that_misbehaves_is_dropped(client, misdeed):
    """Hanging up in mid-request, or talking nonsense, is a loss; the next call works again."""
    ends_with(ErrorCode.DAEMON_LOST, client.reset, misdeed)
    client.ping()


def test_a_farewell_is_heard_before_the_end(client):
    """What the daemon says before it closes is the error that callers see."""
    ends_with(ErrorCode.DRAINING, client.reset, SAY_FAREWELL)
    client.ping()


@pytest.mark.timing
def test_a_daemon_that_stops_reading_meets_deadlines(daemon):
    """Neither small requests nor one too large for the socket hang; a request cut off ends the connection."""
    with Client(daemon.path, GEOMETRY, timeout_s=0.2) as client:
        ends_with(ErrorCode.DEADLINE_EXCEEDED, client.reset, STOP_READING)
        ends_with(ErrorCode.DEADLINE_EXCEEDED, client.ping)
        start_s = time.monotonic()
        ends_with(ErrorCode.DEADLINE_EXCEEDED, client.match, [bytes(16)] * 100_000)
        assert time.monotonic() - start_s < 0.5
        assert client._link.lost
        client.ping()


def test_reports_to_a_daemon_that_stops_reading_never_wait(daemon):
    """Each returns at once whether the socket takes it or not; what does not fit is bounded, and counted."""
    report = bytes(HEAT_ENTRY_BYTES * REPORT_PAGES_MAX)
    with Client(daemon.path, GEOMETRY, timeout_s=0.2) as client:
        ends_with(ErrorCode.DEADLINE_EXCEEDED, client.reset, STOP_READING)
        used_s = time.thread_time()
        for _ in range(100):
            client.report(report)
        assert time.thread_time() - used_s < 1
        assert client._session.rows.reports_dropped > 80
        assert 0 < len(client._link._unsent) <= (REPORTS_UNSENT_MAX + 1) * len(report) + 1000
        ends_with(ErrorCode.DEADLINE_EXCEEDED, client.ping)
        assert len(client._link._unsent) <= (REPORTS_UNSENT_MAX + 1) * len(report) + 1000


def test_a_large_request_goes_through(client):
    """A message far larger than the socket's own memory is sent in pieces and answered."""
    assert client.match([bytes(16)] * 200_000).length == 200_000


def test_a_refused_hello_is_told_as_it_is(daemon):
    """The daemon's reason reaches the caller of connect, and calls within and after the back-off repeat it."""
    client = Client(daemon.path, GEOMETRY, token="wrong")
    ends_with(ErrorCode.UNAUTHENTICATED, client.connect)
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        with pytest.raises(FlexKVError, match="this token is unknown") as refusal:
            client.ping()
        assert refusal.value.code is ErrorCode.UNAUTHENTICATED
        time.sleep(0.01)
    client.close()


def test_who_waits_for_anothers_connecting_hears_of_the_loss(tmp_path):
    """While one thread greets a daemon that never answers, another's call ends by its own time as DAEMON_LOST."""
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute, ThreadPoolExecutor(1) as threads:
        mute.bind(str(path))
        mute.listen()
        client = Client(path, GEOMETRY, timeout_s=1.0)
        first = threads.submit(ends_with, ErrorCode.DEADLINE_EXCEEDED, client.ping)
        accepted, _ = mute.accept()  # the first thread connects, and waits to be greeted
        client.timeout_s = 0.1
        ends_with(ErrorCode.DAEMON_LOST, client.ping)
        first.result()
        accepted.close()
        client.close()


def test_threads_whose_daemon_is_gone_all_hear_of_it(daemon, client):
    """With nobody at the socket eight threads get DAEMON_LOST, whoever of them tries to connect."""
    daemon.kill()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: ends_with(ErrorCode.DAEMON_LOST, client.ping), range(64)))


@pytest.mark.parametrize("first", [True, False], ids=["the reader", "a follower"])
def test_an_interrupted_thread_leaves_the_others_in_order(client, first):
    """An exception from a signal handler in one waiting thread, reading or not, costs no other its reply."""
    keys = client.keys(range(64))

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(2) as threads:
            delay_s = 0.05 if first else 0.0
            others = [threads.submit(lambda: time.sleep(delay_s) or client.match(keys, hold_s=0.4)) for _ in range(2)]
            time.sleep(0.0 if first else 0.05)
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            with pytest.raises(InterruptedError):
                client.match(keys, hold_s=1.5)
            assert [other.result(timeout=2).length for other in others] == [1, 1]
    finally:
        signal.signal(signal.SIGALRM, before)
    client.ping()


@pytest.mark.timing
def test_a_storm_of_restarts_leaves_nobody_waiting(daemon, client):
    """Six threads call while the daemon is killed three times: no call outlasts a second, and all go on after it."""
    memory, keys, stop, longest_s = register(client), client.keys(range(3 * 64)), threading.Event(), [0.0] * 6

    def work(thread: int) -> int:
        answered, chance = 0, random.Random(thread)
        calls = [
            client.ping,
            lambda: client.match(keys, hold_s=chance.random() / 50),
            lambda: client.load(keys, range(12), memory, deadline_s=0.01).wait(),
            lambda: client.prefetch(keys, deadline_s=0.02).wait(timeout_s=0.005),
            client.poll,
        ]
        while not stop.wait(0.002):
            start_s = time.monotonic()
            try:
                chance.choice(calls)()
                answered = answered + 1 if restarted.is_set() else 0
            except FlexKVError as error:
                if error.code is not ErrorCode.DAEMON_LOST:
                    raise
            longest_s[thread] = max(longest_s[thread], time.monotonic() - start_s)
        return answered

    restarted = threading.Event()
    with ThreadPoolExecutor(6) as threads:
        working = [threads.submit(work, thread) for thread in range(6)]
        for _ in range(3):
            time.sleep(0.2)
            daemon.restart()
        client.connect()
        restarted.set()
        time.sleep(0.4)
        stop.set()
        assert all(future.result() > 0 for future in working)
    assert max(longest_s) < 1
