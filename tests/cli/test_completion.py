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
while [ $# -gt 0 ]; do
    COMP_WORDS=($1 "$2") COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMPREPLY=()
    COMP_LINE="$1 $2" COMP_POINT=$(( ${#1} + ${#2} + 1 )) COMP_TYPE=9 COMP_KEY=9
    _python_argcomplete flexkv "$2" ""
    echo "${COMPREPLY[@]}"
    shift 2
done
"""
"""Sources the script in a real bash, and presses Tab at the end of each pair of words and last word."""


def program(folder: Path) -> Path:
    """`flexkv` as a program of its own, of this source."""
    path = folder / "flexkv"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\nfrom flexkvd.cli import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return path


def test_bash_completes_commands_options_and_choices(tmp_path):
    """Sourced in a real bash: commands by their beginning, options of a command, choices of an option."""
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pairs = ("flexkv", "s", "flexkv doctor", "--c", "flexkv doctor --only", "k")
    command = ["bash", "-c", COMPLETE, str(program(tmp_path)), *pairs]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ended.stderr == ""
    commands, options, choices = (set(line.split()) for line in ended.stdout.splitlines())
    assert commands == {name for name in MODULES if name.startswith("s")}
    assert "--config" in options
    assert choices == {"kernel"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell, capsys):
    """The script names the command; `--json` wraps it."""
    assert main(["completion", shell]) == 0
    assert "flexkv" in capsys.readouterr().out
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == shell


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """`| true` closes the pipe at once: the command ends with 0 and says nothing."""
    command = ["bash", "-c", '"$0" completion zsh | true; exit ${PIPESTATUS[0]}', str(program(tmp_path))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_terminal_without_our_signs_gets_question_marks(tmp_path):
    """Arrows and dashes that an encoding has not are replaced, whatever the locale."""
    command = [str(program(tmp_path)), "doctor", "--only", "kernel"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.isascii()


def test_a_bug_is_a_sentence_unless_it_is_looked_for(monkeypatch, capsys):
    """What nobody foresaw is one line and exit code 1; with FLEXKV_DEBUG it is a traceback."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("never")

    monkeypatch.setattr("flexkvd.cli.completion.shellcode", broken)
    assert main(["completion", "bash"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("flexkv: a bug: ZeroDivisionError: never.")
    assert said.count("\n") == 1
    monkeypatch.setenv("FLEXKV_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["completion", "bash"])
