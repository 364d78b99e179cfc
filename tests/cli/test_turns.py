"""The order in which the clients of a replay get its requests."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from flexkv_py.traces import TraceRequest
from flexkvd.cli.turns import AHEAD_MAX, Turns


def requests_of(*sessions: int | None) -> list[TraceRequest]:
    return [TraceRequest(float(at), [at], 512, partial=False, session=who) for at, who in enumerate(sessions)]


def serve_all(requests: list[TraceRequest], client_count: int) -> list[tuple[float, float, TraceRequest]]:
    """Serve for a moment each; returns when each began and ended."""
    turns, served = Turns(iter(requests)), []

    def serve() -> None:
        while True:
            with turns.next() as request:
                if request is None:
                    return
                began = time.monotonic()
                time.sleep(0.001)
                served.append((began, time.monotonic(), request))

    clients = [threading.Thread(target=serve, daemon=True) for _ in range(client_count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(10)
        assert not client.is_alive(), "a client waits for ever"
    return served


def test_calls_of_a_session_never_overlap_and_keep_their_order():
    """However many clients ask, each call of a session begins after the one before it ended, and none is left out."""
    chance = random.Random(5)
    requests = requests_of(*(chance.choice([None, 1, 1, 1, 2, 3]) for _ in range(300)))
    served = serve_all(requests, client_count=6)
    assert sorted(request.time_s for _, _, request in served) == [request.time_s for request in requests]
    for session in (1, 2, 3):
        calls = sorted((call for call in served if call[2].session == session), key=lambda call: call[2].time_s)
        for (_, ended, _), (began, _, _) in itertools.pairwise(calls):
            assert ended <= began


def test_others_are_served_while_a_session_is_busy():
    """A call that must wait holds back neither another session nor a request that belongs to none."""
    turns = Turns(iter(requests_of(1, 1, 2, None)))
    with turns.next() as first, turns.next() as second, turns.next() as third:
        assert [request.time_s for request in (first, second, third)] == [0, 2, 3]
    with turns.next() as last:
        assert last.time_s == 1
    with turns.next() as nothing:
        assert nothing is None


def test_no_more_than_a_bound_is_read_ahead():
    """A trace of one session is not read into memory in search of another one."""
    taken = iter(requests_of(*[1] * (AHEAD_MAX + 10)))
    turns = Turns(taken)
    with turns.next():
        waiter = threading.Thread(target=lambda: turns.next().__enter__(), daemon=True)
        waiter.start()
        waiter.join(0.05)
        assert waiter.is_alive()
        assert len(list(taken)) == 9
    turns.stop()


def test_a_client_that_fails_sends_the_others_home():
    """After `stop` nobody gets another request, also not one who was waiting for a session."""
    turns, got = Turns(iter(requests_of(1, 1))), []

    def wait() -> None:
        with turns.next() as request:
            got.append(request)

    def fail() -> None:
        with turns.next():
            waiter.start()
            time.sleep(0.02)
            turns.stop()
            raise ConnectionError

    waiter = threading.Thread(target=wait, daemon=True)
    with pytest.raises(ConnectionError):
        fail()
    waiter.join(5)
    assert got == [None]
