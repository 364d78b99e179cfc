"""`flexkv completion`: what bash makes of the script, and that all three shells get one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexkvd.cli import MODULES, main

COMPLETE = """
source <("$0" completion bash)
COMP_WORDS=($1 "$2") COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
COMP_LINE="$1 $2" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9
_python_argcomplete flexkv "$2" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Sources the script in a real bash and presses Tab after the words."""


def tab(tmp_path: Path, words: str, last: str) -> set[str]:
    """What bash offers for the last word."""
    program = tmp_path / "flexkv"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\nfrom flexkvd.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-c", COMPLETE, str(program), words, last]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ended.stderr == ""
    return {word.strip() for word in ended.stdout.split()}


def test_bash_completes_commands_options_and_choices(tmp_path):
    """Sourced in a real bash: commands by their beginning, options of a command, choices of an option."""
    assert tab(tmp_path, "flexkv", "s") >= {name for name in MODULES if name.startswith("s")}
    assert "--config" in tab(tmp_path, "flexkv doctor", "--c")
    assert tab(tmp_path, "flexkv doctor --only", "k") == {"kernel"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell, capsys):
    """The script names the command; `--json` wraps it."""
    assert main(["completion", shell]) == 0
    assert "flexkv" in capsys.readouterr().out
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == shell
