"""S3 behind the fault proxy while a daemon serves: what lies in DRAM is served as before, S3 comes back by itself.

Every fault meets the same traffic: a worker pings, loads what lies in DRAM and saves a little; another one
loads blocks that are in S3 alone, and a third saves into S3. Afterwards everything acknowledged is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain as chain_of
from pathlib import Path

import psutil

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.s3server import S3Server
from tests.s3proxy import FaultProxy, Faults

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess, until

CHAIN_BLOCKS = 4
HOT = 0
COLD_PER_FAULT = 12
SAVED_AT = 1 << 20
PAUSE_S = 0.01
PINGS_PER_TURN = 5
SAVE_PAUSE_S = 0.2
"""What is saved into DRAM under a long outage must fit there: nothing takes it off."""
BACK_S_MAX = 40.0
"""The longest probe delay, a probe, and what a busy machine takes."""
MEMORY_GROWTH_BYTES_MAX = 96 << 20

OUTAGE = "outage"
FAULTS = {
    OUTAGE: Faults(refuse=True),
    "503 storm": Faults(status=503, code="SlowDown"),
    "503 to half": Faults(status=503, code="SlowDown", share=0.5),
    "5 s latency": Faults(delay_s=5.0),
    "silence": Faults(silent=True),
    "cut in mid-body": Faults(cut_answer=5000, cut_request=5000),
    "wrong length": Faults(methods=["GET"], length_off_by=4096),
    "another object's body": Faults(methods=["GET"], other_body=True),
    "flipped bit": Faults(methods=["GET"], flip=5000),
    "expired credentials": Faults(status=403, code="ExpiredToken"),
    "clock skew": Faults(status=403, code="RequestTimeTooSkewed"),
    "bucket removed": Faults(status=404, code="NoSuchBucket"),
}
SPOILS = ("another object's body", "flipped bit", "wrong length")
"""A block that was read under these may be dropped as damaged: a miss afterwards, never wrong."""


@dataclass
class Latencies:
    """Seconds of every call on what lies in DRAM."""

    ping: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    save: list[float] = field(default_factory=list)

    def p99_ms(self) -> dict[str, float]:
        return {name: sorted(times)[int(len(times) * 0.99)] * 1e3 for name, times in vars(self).items()}


class Loop(threading.Thread):
    """Runs one kind of traffic over and over until it is told to end; a failure is raised by `end`."""

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._turn = turn
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._turn()
                time.sleep(PAUSE_S)
        except BaseException as failure:
            self._failure = failure

    def leave(self) -> None:
        self._over.set()

    def end(self) -> None:
        self.leave()
        self.join(60)
        assert not self.is_alive(), "a call had no end in 60 s"
        if self._failure is not None:
            raise self._failure


class Traffic:
    """What runs beside a fault."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.acknowledged: list[int] = []
        self.cold_loads = 0
        self.latencies = Latencies()
        self._next, self._fresh, self._save_at = SAVED_AT, 1 << 24, 0.0
        self._clients = [Client(daemon.socket, GEOMETRY, timeout_s=60) for _ in range(3)]
        for client in self._clients:
            client.connect()
        self.pages = [Pages(client, CHAIN_BLOCKS) for client in self._clients]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def run(self, seconds: float, cold: list[int]) -> dict[str, float]:
        """All three kinds at once; p99 in milliseconds of what DRAM serves."""
        self.latencies = Latencies()
        cold = list(cold)
        loops = [Loop(self.serve_hot), Loop(lambda: self._load_cold(cold)), Loop(self._save_deep)]
        time.sleep(seconds)
        for loop in loops:
            loop.leave()
        for loop in loops:
            loop.end()
        return self.latencies.p99_ms()

    def serve_hot(self) -> None:
        client, pages = self._clients[0], self.pages[0]
        for _ in range(PINGS_PER_TURN):
            _timed(self.latencies.ping, client.ping)
        keys = chain(client, HOT, CHAIN_BLOCKS)
        places = pages.pages(0, CHAIN_BLOCKS)
        pages.wipe(0, CHAIN_BLOCKS)
        outcomes = _timed(self.latencies.load, lambda: client.load(keys, places, pages.memory).wait().outcomes)
        assert set(outcomes) == {Outcome.LOADED}, f"what lies in DRAM was not served: {outcomes}"
        assert pages.wrong(0, range(HOT, HOT + CHAIN_BLOCKS)) == []
        if time.monotonic() < self._save_at:
            return
        self._save_at = time.monotonic() + SAVE_PAUSE_S
        self._fresh += CHAIN_BLOCKS
        keys = chain(client, self._fresh, CHAIN_BLOCKS)
        saved = _timed(self.latencies.save, lambda: client.save(keys, places, pages.memory).wait().outcomes)
        assert Outcome.STORED in saved, f"DRAM took no block: {saved}"

    def _load_cold(self, cold: list[int]) -> None:
        if cold:
            self.load(self.pages[1], cold.pop())
            self.cold_loads += 1

    def load(self, pages: Pages, first: int) -> bool:
        """Whether the whole chain came; raises when a byte that came is not its own."""
        pages.wipe(0, CHAIN_BLOCKS)
        client = pages.client
        keys = chain(client, first, CHAIN_BLOCKS)
        loaded = client.load(keys, pages.pages(0, CHAIN_BLOCKS), pages.memory, deadline_s=10).wait(timeout_s=60)
        came = [at for at, outcome in enumerate(loaded.outcomes) if outcome is Outcome.LOADED]
        wrong = [first + at for at in came if pages.wrong(at, [first + at])]
        assert wrong == [], f"blocks {wrong} came with wrong bytes"
        return len(came) == CHAIN_BLOCKS

    def save(self, pages: Pages, first: int) -> bool:
        """Whether the whole chain was acknowledged by S3."""
        pages.put_chain(0, first, CHAIN_BLOCKS)
        client = pages.client
        keys = chain(client, first, CHAIN_BLOCKS)
        places = pages.pages(0, CHAIN_BLOCKS)
        try:
            outcomes = client.save(keys, places, pages.memory, deadline_s=5, ack="s3").wait(timeout_s=60).outcomes
        except FlexKVError as error:
            if error.code not in (ErrorCode.TIER_UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED):
                raise
            return False
        return set(outcomes) <= {Outcome.STORED, Outcome.PRESENT}

    def _save_deep(self) -> None:
        self._next += CHAIN_BLOCKS
        if self.save(self.pages[2], self._next):
            self.acknowledged.append(self._next)
        time.sleep(SAVE_PAUSE_S)


def s3_faults(
    folder: Path, *, outage_s: int = 30, fault_s: int = 8, faults: tuple[str, ...] = tuple(FAULTS)
) -> dict[str, float]:
    """One daemon through all faults; the figures are p99 of what DRAM serves, and how long S3 took to be back."""
    figures: dict[str, float] = {}
    with S3Server(folder / "s3") as server, FaultProxy(server.endpoint_url) as proxy:
        table = {
            "bucket": "flexkv",
            "prefix": "faults",
            "endpoint_url": proxy.endpoint_url,
            "connect_timeout_s": 1.0,
            "read_timeout_s": 1.0,
            "operation_timeout_s": 4.0,
        }
        cold = {name: _numbers(at) for at, name in enumerate(("quiet", *faults))}
        with DaemonProcess(folder, {"s3": table, "dram": {"bytes": "256MiB"}}, server.environment) as daemon:
            with Client(daemon.socket, GEOMETRY, timeout_s=60) as client:
                _save_all(Traffic(daemon), Pages(client, CHAIN_BLOCKS), [HOT, *chain_of.from_iterable(cold.values())])
            daemon.stop()
            daemon.start()  # now they are in S3 alone
            traffic = Traffic(daemon)
            assert traffic.load(traffic.pages[0], HOT)
            quiet = traffic.run(fault_s, cold["quiet"])
            figures |= {f"quiet: {what} p99 ms": each for what, each in quiet.items()}
            before_bytes = _memory_bytes(daemon)
            for name in faults:
                proxy.set(FAULTS[name])
                p99_ms = traffic.run(outage_s if name == OUTAGE else fault_s, cold[name])
                figures[f"{name}: requests met"] = proxy.set(Faults())
                figures |= {f"{name}: {what} p99 ms": each for what, each in p99_ms.items()}
                figures[f"{name}: back after s"] = back_after_s(traffic)
                missing = sum(not traffic.load(traffic.pages[1], first) for first in cold[name])
                assert name in SPOILS or missing == 0, f"{name}: {missing} chains in S3 are not served afterwards"
                figures[f"{name}: chains dropped as damaged"] = missing
            lost = [first for first in traffic.acknowledged if not traffic.load(traffic.pages[1], first)]
            assert lost == [], f"chains {lost} were acknowledged by S3 and are gone"
            grown = _memory_bytes(daemon) - before_bytes
            assert grown < MEMORY_GROWTH_BYTES_MAX, f"memory grew by {grown} bytes"
            status = daemon.status()["tiers"]["s3"]
            traffic.close()
            daemon.recount()
    return figures | {
        "chains acknowledged by S3": len(traffic.acknowledged),
        "chains loaded from S3 under faults": traffic.cold_loads,
        "times the breaker opened": status["breaker_opened"],
        "memory grown MiB": grown / (1 << 20),
    }


def _save_all(traffic: Traffic, pages: Pages, firsts: list[int]) -> None:
    for first in firsts:
        assert traffic.save(pages, first)
    traffic.close()


def _numbers(at: int) -> list[int]:
    return [(1 + at * COLD_PER_FAULT + each) * CHAIN_BLOCKS for each in range(COLD_PER_FAULT)]


def back_after_s(traffic: Traffic) -> float:
    """Until the tier is up and takes a save."""
    number = iter(range(1 << 26, 1 << 27, CHAIN_BLOCKS))

    def back() -> bool:
        return traffic.daemon.status()["tiers"]["s3"]["up"] and traffic.save(traffic.pages[2], next(number))

    return until(back, "S3 is back by itself", BACK_S_MAX, 0.05)


def _memory_bytes(daemon: DaemonProcess) -> int:
    """Resident memory of the daemon's own and of its byte workers, without the arena."""
    process = psutil.Process(daemon.pid)
    total = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used = each.memory_info()
            total += used.rss - used.shared
    return total


def _timed(times: list[float], call: Callable[[], list[Outcome] | None]) -> list[Outcome]:
    begun = time.perf_counter()
    result = call()
    times.append(time.perf_counter() - begun)
    return result or []
