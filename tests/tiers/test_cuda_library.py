"""The real CudaDriver over a libcuda in C: NVIDIA's bindings and our raw call, really made.

Without a GPU; where there is a driver, the tests marked `gpu` call that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiers.library import ROOT, made_in, why_none

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python with such a library, and returns what it says."""
    if why := why_none():
        pytest.skip(why)

    def run(*arguments: str, pins_read_only: bool = False) -> str:
        environment = made_in(tmp_path, pins_read_only=pins_read_only)
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins take longer than the tests
        told = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    return run


def test_lanes_keep_their_contract_over_a_library(run: Run) -> None:
    """The whole suite, with batched calls and without: arrays, rectangles, events and gates reach a driver as meant."""
    bare = ["-c", os.devnull, "--rootdir", ".", "--import-mode", "importlib", "-p", "no:cacheprovider"]
    assert " passed" in run("-m", "pytest", *bare, "tests/tiers/test_lanes_contract.py", "-k", "driver", "-W", "ignore")


@pytest.mark.parametrize("pins_read_only", [False, True])
def test_devices_memory_and_pinning_over_a_library(run: Run, pins_read_only: bool) -> None:
    """UUIDs, attributes, handles, descriptors, registrations: each call with the driver's own types and structures."""
    word = "pins_read_only" if pins_read_only else "pins_writable"
    assert run("-m", "tests.tiers.library_run", word, pins_read_only=pins_read_only) == "all of it\n"
