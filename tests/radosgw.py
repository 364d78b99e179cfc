"""Debian's radosgw over a monitor and a store in memory, on loopback ports: an S3 server that is not SeaweedFS.

Packages: radosgw, ceph-mon, ceph-osd. Everything it writes is in the directory it is given. Starts in 15 s,
most of which is the first request that makes its pools.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from pathlib import Path

import boto3
from botocore.config import Config

from flexkvd.cli.children import die_with_parent
from flexkvd.cli.s3server import credentials_environment

PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool")
BUCKET = "flexkv"
START_S_MAX = 60.0
STORE_BYTES = 1 << 30

_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = {at}
admin socket = {at}/$name.asok
log file = {at}/$name.log
pid file =
keyring = {at}/keyring
mon data = {at}/mon
osd data = {at}/osd
osd objectstore = memstore
memstore device bytes = {store_bytes}
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail warn = 1
mon data avail crit = 0
rgw frontends = beast endpoint=127.0.0.1:{rgw}
rgw rados pool pg num min = 1
"""


def missing_programs() -> list[str]:
    """What would have to be installed first."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class RadosGateway:
    """The server. `with` starts it with a bucket, and ends it; its processes die with this one."""

    def __init__(self, directory: Path) -> None:
        self._at = directory
        self._ports = _free_port(), _free_port()
        self._key_id, self._key = secrets.token_hex(8), secrets.token_hex(16)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._gateway: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as the environment boto3 looks at."""
        return credentials_environment(self._key_id, self._key)

    def client(self):
        """A boto3 client of its own, for whoever wants to look behind the tier."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self._key_id,
            aws_secret_access_key=self._key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def __enter__(self) -> RadosGateway:
        try:
            self._make_cluster()
            self.start()
            client = self.client()
            client.create_bucket(Bucket=BUCKET)
            client.close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def start(self) -> None:
        """The gateway alone; what was stored is in the cluster."""
        self._gateway = self._exec("radosgw", "-n", "client.admin", "-f")
        end = time.monotonic() + START_S_MAX
        while not _answers(self.endpoint_url):
            assert time.monotonic() < end, f"radosgw does not answer; its logs are in {self._at}"
            time.sleep(0.1)

    def kill(self) -> None:
        if self._gateway is not None:
            self._gateway.kill()
            self._gateway.wait()
            self._gateway = None

    def _make_cluster(self) -> None:
        """One monitor, one store in memory, one user."""
        at, fsid, osd = self._at, str(uuid.uuid4()), str(uuid.uuid4())
        for name in ("mon", "osd"):
            (at / name).mkdir(parents=True)
        mon, rgw = self._ports
        text = _CONFIGURATION.format(fsid=fsid, mon=mon, rgw=rgw, at=at, store_bytes=STORE_BYTES)
        (at / "ceph.conf").write_text(text)
        keys, everything = str(at / "keyring"), ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
        _run("ceph-authtool", "--create-keyring", keys, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        _run("ceph-authtool", keys, "--gen-key", "-n", "client.admin", *everything)
        monitors = str(at / "monmap")
        _run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{mon}]", monitors)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--keyring", keys, "--monmap", monitors)
        self._processes.append(self._exec("ceph-mon", "-i", "a", "-f"))
        self._run("ceph", "osd", "new", osd)
        rights = ("mon", "allow profile osd", "osd", "allow *")
        made = self._run("ceph", "auth", "get-or-create", "osd.0", *rights)
        with (at / "keyring").open("ab") as file:
            file.write(made)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._processes.append(self._exec("ceph-osd", "-i", "0", "-f"))
        user = ("--uid", "flexkv", "--display-name", "flexkv", "--access-key", self._key_id, "--secret-key", self._key)
        self._run("radosgw-admin", "user", "create", *user)

    def _run(self, *command: str) -> bytes:
        return _run(*command, "-c", str(self._at / "ceph.conf"))

    def _exec(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._at / f"{command[0]}.out").open("ab") as out:
            return subprocess.Popen(
                [*command, "-c", str(self._at / "ceph.conf")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it only asks the kernel, and holds no lock
            )


def _run(*command: str) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=START_S_MAX, check=False)
    assert done.returncode == 0, f"{command} failed: {done.stderr.decode(errors='replace')[-500:]}"
    return done.stdout


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200
    return False
