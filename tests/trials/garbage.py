"""Hostile messages over real sockets beside a working client: coded errors, no crash, no growth, nobody else harmed."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from flexkv_py.client import Client, create_memory
from flexkv_py.errors import ErrorCode
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import Failed, Registered, RegisterMemory
from scripts.bench_parts.row import percentile
from tests.service.test_protocol import Stranger

from .blocks import BLOCK_BYTES, GEOMETRY, Pages, chain
from .fleet import DaemonProcess, until
from .hostile import garbage as garbage_bytes
from .hostile import well_formed

SESSION_MESSAGES_MAX = 40
WARM_UP_SHARE = 0.25
MEMORY_BLOCKS = 4
GROWTH_BYTES_MAX = 4 << 20
WORKING_BLOCKS = 16
LATENCY_S_MAX = 2.0
"""A working client's slowest round trip; what is shown is the percentile."""


class Bystander(threading.Thread):
    """A client that matches, loads, saves and compares all the while."""

    def __init__(self, daemon: DaemonProcess) -> None:
        super().__init__(name="bystander", daemon=True)
        self.failure: BaseException | None = None
        self.rounds = 0
        self.latencies_s: list[float] = []
        self._over = threading.Event()
        self._daemon = daemon

    def run(self) -> None:
        try:
            with Client(self._daemon.socket, GEOMETRY) as client:
                self._work(client, Pages(client, 2 * WORKING_BLOCKS))
        except BaseException as failure:
            self.failure = failure

    def _work(self, client: Client, pages: Pages) -> None:
        places = pages.pages(0, WORKING_BLOCKS)
        while not self._over.is_set():
            first = 1000 + self.rounds % 8 * WORKING_BLOCKS
            keys = chain(client, first, WORKING_BLOCKS)
            pages.put_chain(0, first, WORKING_BLOCKS)
            assert client.save(keys, places, pages.memory).wait().length == WORKING_BLOCKS
            begun = time.perf_counter()
            assert client.match(keys).length == WORKING_BLOCKS
            self.latencies_s.append(time.perf_counter() - begun)
            pages.wipe(WORKING_BLOCKS, WORKING_BLOCKS)
            loaded = client.load(keys, pages.pages(WORKING_BLOCKS, WORKING_BLOCKS), pages.memory).wait()
            assert loaded.length == WORKING_BLOCKS
            assert pages.wrong(WORKING_BLOCKS, range(first, first + WORKING_BLOCKS)) == []
            self.rounds += 1

    def end(self) -> None:
        self._over.set()
        self.join(30)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        assert self.rounds, "the other client got nothing done"
        assert max(self.latencies_s) < LATENCY_S_MAX, f"the other client waited {max(self.latencies_s):.2f} s"


def tables_of(folder: Path) -> dict[str, dict[str, object]]:
    """An SSD tier; stories and the flight record so short that their rings are full before anything is measured."""
    return {
        "ssd": {"directory": str(folder / "ssd"), "bytes": "64MiB"},
        "limits": {"story_events_max": 1000},
        "recorder": {"bytes": "256KiB"},
    }


def garbage(folder: Path, *, messages: int = 20_000, seed: int = 1) -> dict[str, float]:
    """Send `messages` hostile messages over many connections; each is answered by a code or by the end."""
    chance, codes = Random(seed), Counter[str]()
    with DaemonProcess(folder, tables_of(folder)) as daemon:
        other = Bystander(daemon)
        other.start()
        sent = connections = 0
        before: tuple[int, int] = (0, 0)
        begun = time.monotonic()
        while sent < messages:
            sent += _session(daemon, chance, codes)
            connections += 1
            if not before[0] and sent >= WARM_UP_SHARE * messages:
                before = _footprint(daemon)
        seconds = time.monotonic() - begun
        until(lambda: daemon.descriptors() <= before[1], "no more descriptors are open than before", 10)
        after = _footprint(daemon)
        other.end()
        assert ErrorCode.INTERNAL not in codes, f"a bug answered: {daemon.log_tail()}"
        assert set(codes) - {"served"} <= set(ErrorCode)
        assert after[0] - before[0] < GROWTH_BYTES_MAX, f"the daemon grew by {after[0] - before[0]} bytes"
        daemon.settle()
        daemon.recount()
        return {
            "hostile messages": sent,
            "connections": connections,
            "messages_per_s": sent / seconds,
            "answered by a code": sum(codes.values()) - codes["served"],
            "different codes": len(codes) - 1,
            "growth_KiB": (after[0] - before[0]) / 1024,
            "descriptors more": max(0, after[1] - before[1]),
            "rounds of the other client": other.rounds,
            "its match_ms_p50": 1000 * percentile(other.latencies_s, 50),
            "its match_ms_p99": 1000 * percentile(other.latencies_s, 99),
        }


def _session(daemon: DaemonProcess, chance: Random, codes: Counter[str]) -> int:
    """One connection of a hostile worker from beginning to end; how many messages it sent."""
    stranger = Stranger(daemon.socket)
    sent = 0
    try:
        if chance.random() < 0.9:
            stranger.greet()
            if chance.random() < 0.5:
                _register(stranger)
            sent = chance.randrange(1, SESSION_MESSAGES_MAX)
            _talk(stranger, chance, sent, codes)
        if chance.random() < 0.7:
            stranger.socket.sendall(garbage_bytes(chance))
            stranger.socket.shutdown(socket.SHUT_WR)
            while (reply := stranger.hear()) is not None:
                codes[reply.code if isinstance(reply, Failed) else "served"] += 1
            sent += 1
    finally:
        stranger.socket.close()
    return sent


def _register(stranger: Stranger) -> None:
    length = MEMORY_BLOCKS * BLOCK_BYTES
    descriptor = create_memory(length)
    message = RegisterMemory(2, length, MEMORY_BLOCKS, GEOMETRY.tokens_per_block, [], "window")
    with suppress(OSError):
        socket.send_fds(stranger.socket, [encode(message)], [descriptor])
    assert isinstance(stranger.hear(), Registered)


def _talk(stranger: Stranger, chance: Random, count: int, codes: Counter[str]) -> None:
    """Send well-formed messages in one go; every one gets the one reply with its id."""
    numbers = set(range(10, 10 + count))
    stranger.say(*(well_formed(chance, number) for number in sorted(numbers)))
    while numbers:
        reply = stranger.hear()
        assert reply is not None, f"the session ended with {len(numbers)} requests unanswered"
        assert reply.id in numbers, f"a reply nobody asked for, or a second one: {reply}"
        numbers.remove(reply.id)
        codes[reply.code if isinstance(reply, Failed) else "served"] += 1


def _footprint(daemon: DaemonProcess) -> tuple[int, int]:
    """Own resident bytes and open descriptors, with no session left but the other client's."""
    until(lambda: len(daemon.status()["sessions"]) == 1, "the strangers' sessions are gone", 10)
    return daemon.rss_bytes(), daemon.descriptors()
