"""A real daemon with DRAM and SSD for commands, and a worker that has saved to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.keys import BlockKey
from flexkvd.cli import main
from tests.service.conftest import GEOMETRY, DaemonThread, Worker

SAVED = 8
"""Blocks the worker has saved, one chain."""


class Operated:
    """The daemon, its worker, and commands against it, run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], **tables: dict[str, object]) -> None:
        (folder / "ssd").mkdir()
        ssd = {"directory": str(folder / "ssd"), "bytes": "64MiB"}
        api = {"socket": str(folder / "admin.sock")} | tables.pop("api", {})
        self.daemon = DaemonThread(folder, ssd=ssd, api=api, **tables)
        self.address = str(folder / "admin.sock")
        self._capsys = capsys
        self.client = Client(self.daemon.socket, GEOMETRY, tenant="team-a")
        self.worker = Worker(self.client)
        self.keys: list[BlockKey] = self.client.keys(list(range(GEOMETRY.tokens_per_block * SAVED)))
        ended = self.client.save(self.keys, self.worker.pages(0, SAVED), self.worker.memory).wait(timeout_s=5)
        assert ended.length == SAVED

    @property
    def hex_keys(self) -> list[str]:
        return [key.hex() for key in self.keys]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and stderr of one command."""
        code = main([arguments[0], "--address", self.address, *arguments[1:]])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, *arguments: str) -> dict[str, object]:
        """The one object that a command prints; it must end well and say nothing else."""
        code, out, err = self.run(*arguments, "--json")
        assert (code, err) == (0, ""), err
        return dict(json.loads(out))

    def close(self) -> None:
        self.client.close()
        assert self.daemon.stop() == 0


def wait_until_answered(operated: Operated) -> None:
    """The API comes up behind the worker socket."""
    end = time.monotonic() + 15
    while (code := operated.run("status")[0]) != 0:
        assert time.monotonic() < end, f"status ends with {code}"
        time.sleep(0.02)


@pytest.fixture
def operated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operated]:
    daemon = Operated(tmp_path, capsys)
    wait_until_answered(daemon)
    yield daemon
    daemon.close()


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
