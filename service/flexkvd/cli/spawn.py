"""Starts a daemon of one's own for a run: configuration, sockets and SSD directory in a temporary folder.

Used by `flexkv replay --spawn` and the benchmarks. The daemon is ended by SIGTERM, and by SIGKILL if it
does not drain in time; the folder goes with it. It dies with the process that started it.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from types import TracebackType
from urllib.parse import urlsplit

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.admin import AdminClient
from flexkvd.cli.children import die_with_parent

MIB = 1 << 20
START_S_MAX = 60.0
STOP_S_MAX = 30.0
LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")
_POLL_S = 0.01
_LOG_LINES = 5
_PLAIN = re.compile(r"[\w.:/\[\]%~-]+")  # nothing that would end a TOML string


@dataclass(frozen=True)
class Sizes:
    """Room per tier in bytes (None: no such tier), S3 as `http://host:port/bucket/prefix`."""

    dram_bytes: int = 256 * MIB
    ssd_bytes: int | None = None
    s3_url: str | None = None
    admission: str = "always"
    policy: str = "adaptive"


class SpawnedDaemon:
    """A running flexkvd; `with` ends it."""

    def __init__(self, sizes: Sizes, environment: Mapping[str, str] | None = None) -> None:
        template = config_template(sizes)  # refuses what cannot be before anything is made
        self._folder = tempfile.TemporaryDirectory(prefix="flexkv-")
        folder = Path(self._folder.name)
        self.socket = str(folder / "worker.sock")
        self.admin = AdminClient(str(folder / "admin.sock"))
        self._log = folder / "flexkvd.log"
        config = folder / "flexkvd.toml"
        config.write_text(template.substitute(folder=folder), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "flexkvd.main", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        self.pid = self._process.pid

    def wait_socket(self) -> None:
        """Until the worker socket takes connections. Raises FlexKVError with the log's end."""
        self._wait(self._listens, "does not listen")

    def wait_ready(self) -> None:
        """Until the tiers are listed and the arena is populated. Raises FlexKVError with the log's end."""
        self._wait(self._ready, "is not ready")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def _ready(self) -> bool:
        try:
            return self.admin.ready()
        except FlexKVError:
            return False  # its socket is not there yet

    def _wait(self, reached: Callable[[], bool], failure: str) -> None:
        end = time.monotonic() + START_S_MAX
        while not reached():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > end:
                state = "ended" if ended else f"{failure} after {START_S_MAX:g} s"
                raise FlexKVError(ErrorCode.NOT_READY, f"the daemon started for this run {state}: {self._last_lines()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End it by SIGTERM, or by SIGKILL when it does not drain in time."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> SpawnedDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " / ".join(lines[-_LOG_LINES:]) or "it said nothing"


def config_template(sizes: Sizes) -> Template:
    """The configuration, with `$folder` for where its files go. Raises FlexKVError (`bad_argument`)."""
    if sizes.dram_bytes < MIB or sizes.dram_bytes % MIB:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"--dram-bytes {sizes.dram_bytes}: choose a multiple of 1 MiB")
    segment_bytes = 2 * MIB if sizes.dram_bytes % (2 * MIB) == 0 else MIB
    tables = [
        '[daemon]\nsocket = "$folder/worker.sock"\n',
        '[api]\nsocket = "$folder/admin.sock"\n',
        f"[dram]\nbytes = {sizes.dram_bytes}\nsegment_bytes = {segment_bytes}\n",
        f'[planner]\nadmission = "{sizes.admission}"\npolicy = "{sizes.policy}"\n',
    ]
    if sizes.ssd_bytes is not None:
        tables.append(f'[ssd]\ndirectory = "$folder/ssd"\nbytes = {sizes.ssd_bytes}\n')
    if sizes.s3_url is not None:
        endpoint, bucket, prefix = split_s3_url(sizes.s3_url)
        sign = "never" if urlsplit(endpoint).hostname in LOOPBACK_NAMES else "auto"  # nobody listens in on loopback
        place = f'endpoint_url = "{endpoint}"\nbucket = "{bucket}"\nprefix = "{prefix}"\n'
        tables.append(f'[s3]\n{place}sign_payload = "{sign}"\n')
    return Template("\n".join(tables))


def split_s3_url(url: str) -> tuple[str, str, str]:
    """`http://host:port/bucket/prefix` → endpoint, bucket, prefix. Raises FlexKVError (`bad_argument`)."""
    parts = urlsplit(url)
    bucket, _, prefix = parts.path.strip("/").partition("/")
    if parts.scheme not in ("http", "https") or not parts.netloc or not bucket or not _PLAIN.fullmatch(url):
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"--s3-url {url!r}: write http://host:port/bucket/prefix (credentials come from the environment)",
        )
    return f"{parts.scheme}://{parts.netloc}", bucket, prefix or "replay"
