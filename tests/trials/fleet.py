"""Daemons as processes that a trial starts, kills, looks into and starts again; and what /proc says of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flexkv_py.errors import FlexKVError
from flexkvd.cli.admin import AdminClient, by_label, value

from .launcher import AGREE, BROKEN

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *sys.path]))}
START_S_MAX = 30.0
Tables = Mapping[str, Mapping[str, object]]


def until(reached: Callable[[], bool], what: str, limit_s: float = START_S_MAX, pause_s: float = 0.002) -> float:
    """Wait until `reached` says so; the seconds it took."""
    begun = time.monotonic()
    while not reached():
        assert time.monotonic() - begun < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(pause_s)
    return time.monotonic() - begun


class DaemonProcess:
    """One `flexkvd` on `folder` over all its lives; `with` starts it, and kills what is left of it.

    `tables` are the configuration's, over defaults small enough that every tier matters.
    """

    def __init__(
        self, folder: Path, tables: Tables | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.socket = folder / "worker.sock"
        self.ssd = folder / "ssd"
        self.log = folder / "flexkvd.log"
        self.config = folder / "flexkvd.toml"
        self.admin = AdminClient(str(folder / "admin.sock"))
        self.environment = ENVIRONMENT | dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        values: dict[str, Mapping[str, object]] = {
            "daemon": {"socket": str(self.socket), "drain_s": 5},
            "api": {"socket": str(folder / "admin.sock"), "requests_per_s_max": 100_000},  # a trial asks without pause
            "dram": {"bytes": "16MiB", "segment_bytes": "4MiB", "huge_pages": False},
        }
        for name, table in (tables or {}).items():
            values[name] = {**values.get(name, {}), **table}
        self.config.write_text("".join(_toml(name, table) for name, table in values.items()), encoding="utf-8")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        """Start the process and return at once."""
        assert self.process is None or self.process.poll() is not None
        command = [sys.executable, "-m", "tests.trials.launcher", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stderr=log)

    def start(self) -> Self:
        """Start it and return once it has read in its tiers."""
        self.launch()
        until(self.ready, f"flexkvd is ready: {self.log_tail()}", pause_s=0.01)
        return self

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"flexkvd ended at start: {self.log_tail()}"
        with suppress(FlexKVError):
            return self.admin.ready()
        return False

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer would."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; it must drain and exit with 0."""
        self._end(signal.SIGTERM, 0)

    def _end(self, number: signal.Signals, status: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        ended = self.process.wait(START_S_MAX)
        assert ended == status, f"flexkvd ended with {ended}: {self.log_tail()}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if error is None:
            assert "Traceback" not in self.log.read_text(errors="replace"), self.log_tail()

    # ------------------------------------------------------------ looking in

    def status(self) -> dict[str, Any]:
        return self.admin.json("/v1/status")

    def planner(self) -> dict[str, Any]:
        """What the planner says of its state."""
        facts: dict[str, Any] = self.status()["planner"]
        return facts

    def metric(self, name: str, **labels: str) -> float:
        return value(self.admin.metrics(), name, **labels)

    def faults(self) -> dict[str, float]:
        """Failed transfers so far, by tier and fault."""
        return by_label(self.admin.metrics(), "flexkv_faults_total", "what")

    def story(self, key: bytes) -> list[tuple[str, str]]:
        """What happened to a block and in which tier, oldest first."""
        return [(event["what"], event["tier"]) for event in self.admin.json(f"/v1/blocks/{key.hex()}/story")["events"]]

    def settle(self, limit_s: float = START_S_MAX) -> None:
        """Wait until nothing is in flight."""
        until(lambda: self.planner()["transfers"] == 0, "every transfer has ended", limit_s, 0.01)

    def recount(self) -> None:
        """Have the living daemon recount all its state and compare."""
        before = self.log.read_text(errors="replace").count("recounted:")
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        until(lambda: self.log.read_text(errors="replace").count("recounted:") > before, "the recount has ended")
        assert BROKEN not in self.log.read_text(errors="replace"), self.log_tail()
        assert AGREE in self.log.read_text(errors="replace")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else "it said nothing"

    def maps(self, name: str) -> int:
        """Mappings of memfds called `name` in the daemon's address space."""
        return Path(f"/proc/{self.pid}/maps").read_text().count(f"/memfd:{name} ")

    def descriptors(self, name: str = "") -> int:
        """Open descriptors of the daemon, or those of memfds called `name`."""
        folder = Path(f"/proc/{self.pid}/fd")
        targets = [_target(folder / name) for name in os.listdir(folder)]
        return sum(not name or target.startswith(f"/memfd:{name} ") for target in targets if target)

    def cpu_s(self) -> float:
        """CPU seconds of the running process so far, its threads included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory of the daemon's own: without the arena and the workers' mappings."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""


def _toml(name: str, table: Mapping[str, object]) -> str:
    """A table whose values are strings, numbers, booleans or lists of them: written alike in JSON and TOML."""
    lines = [f"{key} = {json.dumps(each)}\n" for key, each in table.items()]
    return f"[{name}]\n{''.join(lines)}\n"
