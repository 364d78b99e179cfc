"""A folder as a reader has it, in which shell snippets run: the clone around it, both commands on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

PREAMBLE = """set -euo pipefail
trap 'status=$?; running=$(jobs -p); [[ -z "$running" ]] || kill -9 $running 2> /dev/null; exit $status' EXIT
"""
"""A snippet fails with its first command that does, and leaves no process behind."""

SHELL_S_MAX = 220
"""Dozens of commands, each of which starts Python: on a busy machine that takes its time."""

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository's folders, and `.venv/bin` with the commands as an installation would make them."""
    for name in ("scripts", "service", "demo", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in {"flexkvd": "flexkvd.main", "flexkv": "flexkvd.cli"}.items():
        program = f"from {module} import main; raise SystemExit(main())"
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def shell(clone: Path) -> Shell:
    """Runs a script of bash there; it is the test's failure if a command fails."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(clone / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        packages = os.pathsep.join(str(ROOT / name) for name in ("", "tiers", "service"))
        environment = os.environ | {"PATH": path, "PYTHONPATH": packages}
        environment.pop("FLEXKV_ADDRESS", None)
        ended = subprocess.run(
            ["bash", "-c", PREAMBLE + script],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SHELL_S_MAX,
            check=False,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}"
        return ended

    return run
