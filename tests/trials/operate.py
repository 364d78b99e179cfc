"""What an operator does to a daemon under load: reload, drain, stop; and what its service manager does to a stuck one.

Savers go on through all of it, acknowledged at `ssd` and at `s3`. Whatever happened, every block that was acknowledged
is a hit with its bytes, in the daemon that runs at the end: each time the new ones, at last all.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path

from flexkvd.cli.s3server import S3Server

from .fleet import DaemonProcess, until
from .kill_daemon import CHAIN_BLOCKS, Record, Saver, check

ACKS = ("ssd", "ssd", "s3")
"""One saver each."""
LOAD_CHAINS = 6
"""Chains that have to be acknowledged before and after whatever is done to the daemon."""
CHAINS = 1 << 30
WATCHDOG_S = 2.0
DRAIN_S = 10
DRAINED_S = 0.3
"""How long nothing may be acknowledged by a daemon that was drained."""
RULES = ("lru", "s3fifo", "adaptive")


class ServiceManager(threading.Thread):
    """A service manager's part of sd_notify(3): hears datagrams, and ends a ready daemon that is silent too long."""

    def __init__(self) -> None:
        super().__init__(name="service-manager", daemon=True)
        name = f"flexkv-operate-{secrets.token_hex(8)}"
        self.environment = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": str(round(WATCHDOG_S * 1e6))}
        self.heard: list[str] = []  # every line but those of the watchdog
        self.aborted = 0
        self._watched = 0
        self._over = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{name}")
        self._socket.settimeout(WATCHDOG_S)

    def watch(self, pid: int) -> None:
        """Abort this process when it falls silent; 0: nobody."""
        self._watched = pid

    def said(self, line: str) -> int:
        """How often it was told this."""
        return self.heard.count(line)

    def run(self) -> None:
        while not self._over:
            try:
                lines = self._socket.recv(4096).decode().splitlines()
            except TimeoutError:
                if self._watched:
                    os.kill(self._watched, signal.SIGABRT)
                    self._watched, self.aborted = 0, self.aborted + 1
                continue
            self.heard += [line for line in lines if line != "WATCHDOG=1"]
        self._socket.close()

    def __enter__(self) -> ServiceManager:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watched, self._over = 0, True
        self.join(2 * WATCHDOG_S)


class Operation:
    """A daemon under load, its manager, and what was acknowledged."""

    def __init__(self, daemon: DaemonProcess, manager: ServiceManager) -> None:
        self.daemon, self.manager, self.record = daemon, manager, Record()
        self.checked = 0
        self._good = daemon.config.read_text()
        self._savers = [Saver(daemon, at, self.record, at, ack) for at, ack in enumerate(ACKS)]
        for saver in self._savers:
            saver.chains_left = CHAINS
            saver.go_on.set()
            saver.start()

    def wait_saved(self) -> None:
        """Until the savers were acknowledged some more, by the daemon as it is now."""
        wanted = self.record.count() + LOAD_CHAINS
        until(lambda: self.record.count() >= wanted or self._failed(), "saves are acknowledged", 60)
        assert not self._failed()

    def check_since(self, before: int) -> None:
        self.checked += check(self.daemon, self.record.chains[before : before + 8 * LOAD_CHAINS])

    def reload(self, turn: int) -> None:
        """Another policy, watermark and quota: in force without a restart, and a wrong file changes nothing."""
        boot, ready, quota_bytes = self.daemon.status()["boot"], self.manager.said("READY=1"), (turn + 1) << 20
        changed = f'[planner]\npolicy = "{RULES[turn % len(RULES)]}"\ndram_clean_ahead = 0.{3 + turn % 3}\n'
        changed += f"[tenants.crowd]\nssd_bytes = {quota_bytes}\n"
        for text, words in ((changed, "reloaded: planner."), ("[planner]\npolicy = 7\n", "stays as it is")):
            logged = self.daemon.log.read_text().count(words)
            self.daemon.config.write_text(self._good + text)
            os.kill(self.daemon.pid, signal.SIGHUP)
            until(lambda words=words, logged=logged: self.daemon.log.read_text().count(words) > logged, words, 20, 0.01)
        self.daemon.config.write_text(self._good + changed)
        until(lambda: self.manager.said("READY=1") >= ready + 2, "the manager hears that it is ready again", 20, 0.01)
        assert self.daemon.status()["boot"] == boot
        assert self.daemon.admin.json("/v1/tenants/crowd")["quota"]["ssd_bytes"] == quota_bytes

    def drain(self) -> None:
        """By REST: what runs ends, nothing new is admitted, until the daemon is resumed."""
        admin = self.daemon.admin
        job = admin.call("POST", "/v1/drain", {"deadline_s": DRAIN_S})
        ended = until(lambda: admin.json(f"/v1/jobs/{job['id']}")["state"] not in ("queued", "running"), "drained", 30)
        assert admin.json(f"/v1/jobs/{job['id']}")["state"] == "done"
        assert ended < DRAIN_S
        assert self.daemon.status()["state"] == "draining"
        before = self.record.count()
        time.sleep(DRAINED_S)
        assert self.record.count() == before, "a drained daemon admits no save"
        assert admin.call("POST", "/v1/resume")["state"] == "ready"
        self.wait_saved()

    def stop(self) -> float:
        """SIGTERM drains and ends it within the time it was given; how long it took."""
        begun, told = time.monotonic(), self.manager.said("STOPPING=1")
        self.daemon.stop()
        assert self.manager.said("STOPPING=1") == told + 1
        took_s = time.monotonic() - begun
        self.daemon.start()
        return took_s

    def stick(self) -> None:
        """Its loop stands still: the watchdog starves, the manager aborts it, and starts it again."""
        assert self.daemon.process is not None
        self.manager.watch(self.daemon.pid)
        os.kill(self.daemon.pid, signal.SIGRTMIN)
        assert self.daemon.process.wait(60) == -signal.SIGABRT
        assert "in stand_still" in self.daemon.log.read_text(), "the log says where it stood"
        self.daemon.start()

    def end(self) -> None:
        for saver in self._savers:
            saver.end()

    def _failed(self) -> bool:
        return any(saver.failure is not None for saver in self._savers)


def operate(folder: Path, *, rounds: int = 5) -> dict[str, float]:
    """So many times each: reload, drain, SIGTERM and a stuck loop, under load; nothing acknowledged is lost."""
    stops_s: list[float] = []
    with ServiceManager() as manager, S3Server(folder / "server") as server:
        tables = {
            "daemon": {"socket": str(folder / "worker.sock"), "drain_s": DRAIN_S},
            "ssd": {"directory": str(folder / "ssd"), "bytes": f"{256 * (rounds + 1)}MiB"},
            "s3": {"bucket": "flexkv", "endpoint_url": server.endpoint_url, "sign_payload": "never"},
        }
        with DaemonProcess(folder, tables, server.environment | manager.environment) as daemon:
            operation = Operation(daemon, manager)
            try:
                for turn in range(rounds):
                    reload, stop = partial(operation.reload, turn), lambda: stops_s.append(operation.stop())
                    for act in (reload, operation.drain, stop):
                        before = operation.record.count()
                        operation.wait_saved()
                        act()
                        operation.check_since(before)
                    operation.wait_saved()
                    operation.stick()
                operation.wait_saved()
            finally:
                operation.end()
            everything = check(daemon, operation.record.chains)
            daemon.recount()
            assert manager.aborted == rounds
            assert all(took_s < DRAIN_S for took_s in stops_s), stops_s
    return {
        "reloads, drains, stops, stuck loops": rounds,
        "blocks acknowledged": everything,
        "blocks checked in between": operation.checked,
        "blocks acknowledged in a round": CHAIN_BLOCKS * operation.record.count() / rounds,
        "calls that met a daemon that was going or gone": operation.record.losses,
        "stop_s_max": max(stops_s),
    }
