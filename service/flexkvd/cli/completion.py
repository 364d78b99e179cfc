"""`flexkv completion SHELL`: prints what makes a shell complete the commands, by argcomplete."""

from __future__ import annotations

import argparse
import json

from argcomplete.shell_integration import shellcode

from flexkvd.cli.connecting import add_command

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = (
    "Prints a script that makes the shell complete commands, options and their choices. The choices come from the "
    "command itself, so they fit the installed release. With --json {shell, script}."
)
EXAMPLES = (
    "source <(flexkv completion bash)                            # this bash",
    "flexkv completion bash > /etc/bash_completion.d/flexkv      # every bash",
    'flexkv completion zsh > "${fpath[1]}/_flexkv"',
    "flexkv completion fish > ~/.config/fish/completions/flexkv.fish",
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `completion` to the commands of `flexkv`."""
    parser = add_command(commands, "completion", "shell completion", DESCRIPTION, EXAMPLES, daemon=False)
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    script = shellcode(["flexkv"], shell=chosen.shell)
    print(json.dumps({"shell": chosen.shell, "script": script}) if chosen.json else script)
    return 0
