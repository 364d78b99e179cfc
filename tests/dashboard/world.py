"""A daemon as a process of its own, with the API on loopback, and workers that load and save on it.

Owns the daemon's configuration, address and lives: it can be stopped and started again where it was.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from flexkv_py.traces import TraceRequest
from flexkvd.cli.children import die_with_parent
from flexkvd.cli.traffic import Target, replay

START_S_MAX = 30.0
BLOCK_BYTES = 32 * 1024
TOKENS_PER_BLOCK = 512
BLOCKS_MAX = 32
PAUSE_S = 0.05
"""Between requests, so that a replay of minutes leaves the machine to others."""


class World:
    """One daemon's folder, port and, while it runs, process."""

    def __init__(
        self, folder: Path, tables: str = "", ssd_bytes: int = 64 << 20, environment: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.socket = str(folder / "worker.sock")
        self._config = folder / "flexkvd.toml"
        self._log = folder / "log"
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "ssd").mkdir(exist_ok=True)
        self._config.write_text(
            f'[daemon]\nsocket = "{self.socket}"\ndrain_s = 5\n'
            f'[dram]\nbytes = "8MiB"\nsegment_bytes = "2MiB"\n'
            f'[ssd]\ndirectory = "{folder}/ssd"\nbytes = {ssd_bytes}\n'
            f'[api]\nhost = "127.0.0.1"\nport = {self.port}\n{tables}'
        )

    def start(self) -> None:
        """Until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flexkvd.main", "--config", str(self._config)],
                env=self._environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        end = time.monotonic() + START_S_MAX
        while not self._ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """By SIGTERM, as an operator would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(30) == 0, self._log.read_text()
            self._process = None

    def get(self, path: str) -> httpx.Response:
        """One answer of its API."""
        return httpx.get(self.url + path, timeout=10)

    def post(self, path: str, body: dict[str, object]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=10)

    def _ready(self) -> bool:
        try:
            return self.get("readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False  # it does not listen yet


class Traffic:
    """Two workers that serve conversations, some far more often than others, until they are told to stop."""

    def __init__(self, world: World, seed: int = 1, conversations: int = 24) -> None:
        self._stop = threading.Event()
        self._random = random.Random(seed)
        self._conversations = conversations
        self._target = Target(world.socket, BLOCK_BYTES, TOKENS_PER_BLOCK)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            ledger = replay(self._requests(), self._target, client_count=2)
            assert ledger.wrong_count == 0, ledger.wrong
        except BaseException as error:
            self._failure = error

    def _requests(self) -> Iterator[TraceRequest]:
        while not self._stop.wait(PAUSE_S):
            conversation = int(self._random.triangular(0, self._conversations, 0))  # the first are asked for most
            length = self._random.randrange(BLOCKS_MAX // 4, BLOCKS_MAX)
            ids = [0, *range(1000 * conversation + 1, 1000 * conversation + length)]
            yield TraceRequest(0.0, ids, TOKENS_PER_BLOCK * len(ids), partial=False)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
