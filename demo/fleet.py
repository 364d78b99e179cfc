"""The processes of a demo run: workers, the daemon, the S3 server.

Owns starting, talking to and ending them, each by its own pid. Decides nothing about phases. Called by
`run` and `phases`. Everything they write lies in one work directory, logs included.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from demo.messages import WorkerReady
from flexkvd.cli.s3server import S3Server

_START_S_MAX = 60.0
_STOP_S_MAX = 30.0
_ANSWER_S_MAX = 120.0
_LINE_BYTES_MAX = 4 << 20
_LOG_LINES = 30

_SEGMENTS = 4
"""Of a DRAM arena, about: a demo's arenas are of very different sizes."""

_DRAM_SHARE, _SSD_SHARE = 0.5, 0.75
"""Of the bytes that a run saves in all."""

_CONFIG = """\
[daemon]
socket = "{worker}"

[api]
socket = "{admin}"

[dram]
bytes = "{dram_mib}MiB"
segment_bytes = "{segment_mib}MiB"

[ssd]
directory = "{ssd}"
bytes = "{ssd_mib}MiB"
"""

_S3_CONFIG = """
[s3]
bucket = "flexkv"
endpoint_url = "{endpoint_url}"
sign_payload = "never"
"""


Answer = TypeVar("Answer", bound=msgspec.Struct)


class DemoError(Exception):
    """The demo cannot go on; the sentence says which process failed and how."""


class Child:
    """One process, its log file, and its end."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self._process: asyncio.subprocess.Process | None = None

    async def start(
        self, command: Sequence[str], *, talks: bool = False, environment: dict[str, str] | None = None
    ) -> None:
        """Start `command`; with `talks` its stdin and stdout are pipes, otherwise stdout goes to the log."""
        pipe = asyncio.subprocess.PIPE if talks else None
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe or asyncio.subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C reaches the runner alone, which ends the others in order
                env={**os.environ, **(environment or {})},
            )

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer would."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if it takes too long."""
        if not self.running:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), _STOP_S_MAX)
        except TimeoutError:
            await self.kill()

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LOG_LINES:])


class Worker(Child):
    """A process that answers a line of JSON with a line of JSON; one at a time, others wait in line."""

    def __init__(self, name: str, work: Path) -> None:
        super().__init__(name, work / f"{name}.log")
        self._turn = asyncio.Lock()

    async def begin(self, module: str, socket_path: Path, seed: int, *options: str) -> None:
        """Start `python -m module`; `ready` returns when its model is built."""
        told = ["--name", self.name, "--socket", str(socket_path), "--seed", str(seed), *options]
        await self.start([sys.executable, "-m", module, *told], talks=True)

    async def ready(self) -> None:
        msgspec.json.decode(await self._line(_START_S_MAX), type=WorkerReady)

    async def ask(self, request: msgspec.Struct, answer: type[Answer], within_s: float = _ANSWER_S_MAX) -> Answer:
        async with self._turn:
            assert self.process.stdin is not None
            self.process.stdin.write(msgspec.json.encode(request) + b"\n")
            return msgspec.json.decode(await self._line(within_s), type=answer)

    async def _line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), timeout_s)
        except TimeoutError as error:
            raise DemoError(f"{self.name} did not answer within {timeout_s:.0f} s:\n{self.log_tail()}") from error
        if not line:
            raise DemoError(f"{self.name} ended:\n{self.log_tail()}")
        return line

    async def stop(self) -> None:
        """End of input ends a worker; one that is busy is stopped by signal."""
        if self.running and not self._turn.locked():
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                await asyncio.wait_for(self.process.wait(), 5.0)
            except TimeoutError:
                await super().stop()
            return
        await super().stop()


class Daemon(Child):
    """`flexkvd` with a configuration of its own: DRAM and SSD small enough that every tier matters."""

    def __init__(self, work: Path) -> None:
        super().__init__("flexkvd", work / "flexkvd.log")
        self.socket = work / "worker.sock"
        self.ssd_directory = work / "ssd"
        self._admin = work / "admin.sock"
        self._config = work / "flexkvd.toml"
        self._environment: dict[str, str] = {}

    def configure(self, s3: S3Server, working_set_bytes: int) -> None:
        """Write a configuration in which no tier but S3 holds all of a run; credentials go by the environment."""
        self._environment = s3.environment
        self.configure_tiers(round(_DRAM_SHARE * working_set_bytes), round(_SSD_SHARE * working_set_bytes))
        with self._config.open("a") as config:
            config.write(_S3_CONFIG.format(endpoint_url=s3.endpoint_url))

    def configure_tiers(self, dram_bytes: int, ssd_bytes: int) -> None:
        """Write a configuration with these tiers, in whole MiB, and DRAM in whole segments."""
        segment_mib = max(1, (dram_bytes >> 20) // _SEGMENTS)
        self._config.write_text(
            _CONFIG.format(
                worker=self.socket,
                admin=self._admin,
                dram_mib=max(1, (dram_bytes >> 20) // segment_mib * segment_mib),
                segment_mib=segment_mib,
                ssd=self.ssd_directory,
                ssd_mib=max(1, ssd_bytes >> 20),
            )
        )

    async def begin(self) -> None:
        """Start and return once every tier has told what it holds."""
        self.ssd_directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "flexkvd.main", "--config", str(self._config)]
        await self.start(command, environment=self._environment)
        for _ in range(round(_START_S_MAX / 0.1)):
            if not self.running:
                raise DemoError(f"flexkvd ended at start:\n{self.log_tail()}")
            status, _ = await self.call("GET", "/readyz")
            if status == http.HTTPStatus.OK:
                return
            await asyncio.sleep(0.1)
        raise DemoError(f"flexkvd was not ready within {_START_S_MAX:.0f} s:\n{self.log_tail()}")

    async def flush(self) -> None:
        """Copy everything down to S3 (`POST /v1/flush`), as an operator would before moving a node."""
        status, body = await self.call("POST", "/v1/flush", {"to_tier": "s3", "deadline_s": _START_S_MAX})
        if status != http.HTTPStatus.ACCEPTED:
            raise DemoError(f"flush to s3 answered {status}: {body}")
        job = msgspec.json.decode(body)
        while job["state"] in ("queued", "running"):  # it ends by its deadline
            await asyncio.sleep(0.05)
            status, body = await self.call("GET", f"/v1/jobs/{job['id']}")
            if status != http.HTTPStatus.OK:
                raise DemoError(f"the flush to s3 cannot be watched ({status}): {body}")
            job = msgspec.json.decode(body)
        if job["state"] != "done":
            raise DemoError(f"flush to s3 did not end well: {job}")

    async def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample of `/metrics` by its name and labels; empty while the daemon is down."""
        status, body = await self.call("GET", "/metrics")
        if status != http.HTTPStatus.OK:
            return {}
        families = text_string_to_metric_families(body)
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    async def call(self, method: str, path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
        """One REST call over the admin socket: status (0 while nobody listens) and body."""
        return await asyncio.to_thread(_call, self._admin, method, path, body)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_START_S_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _call(path: Path, method: str, target: str, body: dict[str, object] | None) -> tuple[int, str]:
    connection = _UnixConnection(path)
    try:
        encoded = None if body is None else msgspec.json.encode(body)
        connection.request(method, target, encoded, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()
