"""The engine over the real client and a real daemon: hits, and what a dead daemon is worth."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from demo.cache import DaemonCache
from demo.engine import Engine, Generation
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.shape import CHUNK_TOKENS
from flexkv_py.errors import FlexKVError
from flexkvd.cli.admin import AdminClient
from tests.demo.conftest import SMALL, DictCache
from tests.demo.test_exactness import prompt_of, same

START_S_MAX = 30.0
BLOCKS = 6


class Daemon:
    """`flexkvd` with DRAM and SSD in a directory of the test."""

    def __init__(self, directory: Path, dram_bytes: str = "4MiB", more: str = "") -> None:
        self.socket = directory / "worker.sock"
        self._config = directory / "flexkvd.toml"
        self._config.write_text(
            f'[daemon]\nsocket = "{self.socket}"\n[api]\nsocket = "{directory / "admin.sock"}"\n'
            f'[dram]\nbytes = "{dram_bytes}"\nsegment_bytes = "1MiB"\n'
            f'[ssd]\ndirectory = "{directory / "ssd"}"\nbytes = "64MiB"\n{more}'
        )
        (directory / "ssd").mkdir()
        self._admin = AdminClient(str(directory / "admin.sock"))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "flexkvd.main", "--config", str(self._config)]
        self._process = subprocess.Popen(command, env=_environment())

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end:
            with suppress(FlexKVError):  # nobody listens yet
                if self._admin.ready():
                    return
            time.sleep(0.01)
        pytest.fail(f"the daemon is not ready after {START_S_MAX} s")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    """This process's own import path: it may come from pytest's configuration."""
    import os

    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.kill()


class Node:
    """One worker without its process: an engine, its memory, its cache."""

    def __init__(self, model: SparseTransformer, daemon: Daemon, name: str) -> None:
        self.memory = PagedKV(SMALL.geometry("test"), page_tokens=32, page_count=48)
        self.engine = Engine(model, self.memory)
        self.cache = DaemonCache(str(daemon.socket), self.memory, name)

    def run(self, prompt: list[int], new_tokens: int = 3) -> Generation:
        return self.engine.generate(prompt, new_tokens, 5, self.cache)

    def run_until_hit(self, prompt: list[int]) -> Generation:
        """Run again until the daemon serves blocks; every run on the way must be right too."""
        reference = self.engine.generate(prompt, 3, 5, DictCache())
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end:
            generation = self.run(prompt)
            assert same(generation, reference)
            if generation.loaded_blocks:
                return generation
        pytest.fail(f"no hit within {START_S_MAX} s; last errors: {self.cache.account.errors}")

    def close(self) -> None:
        assert self.memory.free_count == self.memory.page_count, "a request kept its pages"
        self.cache.close()
        self.memory.close()


@pytest.fixture
def nodes(model: SparseTransformer, daemon: Daemon) -> Iterator[tuple[Node, Node]]:
    pair = Node(model, daemon, "one"), Node(model, daemon, "other")
    yield pair
    for node in pair:
        node.close()


def test_what_one_worker_saves_another_loads(nodes: tuple[Node, Node]) -> None:
    """Prompt and generated blocks of one worker are hits for another, and every bit comes out the same."""
    one, other = nodes
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + 9)
    one.run_until_hit(prompt)
    first = one.run(prompt, new_tokens=CHUNK_TOKENS)
    follow_up = [*prompt, *first.tokens, *prompt_of(5, seed=9)]
    found = other.run(follow_up)
    assert found.loaded_blocks == BLOCKS + 1
    assert sum(other.cache.account.hits.values()) == BLOCKS + 1
    assert same(found, other.engine.generate(follow_up, 3, 5, DictCache()))


def test_a_dead_daemon_is_a_miss_and_its_ssd_a_hit_again(daemon: Daemon, nodes: tuple[Node, Node]) -> None:
    """After SIGKILL a worker computes the same bits alone; after a restart it reconnects and loads from SSD."""
    one, _ = nodes
    prompt = prompt_of(BLOCKS * CHUNK_TOKENS + 9)
    reference = one.run_until_hit(prompt)
    daemon.kill()
    alone = one.run(prompt)
    assert same(alone, reference)
    assert alone.loaded_blocks == 0
    assert "daemon_lost" in one.cache.account.errors
    daemon.start()
    daemon.wait_until_ready()  # what is computed before that is a hit in DRAM
    assert one.run_until_hit(prompt).loaded_blocks == BLOCKS
    assert one.cache.account.hits == {"ssd": BLOCKS}
