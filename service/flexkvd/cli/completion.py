"""`flexkv completion SHELL`: prints what makes a shell complete the commands, by argcomplete."""

from __future__ import annotations

import argparse
import json

from argcomplete.shell_integration import shellcode

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = """\
Prints a script that makes the shell complete commands, options and their choices. The choices come from the command
itself, so they fit the installed release.
"""
EPILOG = """\
examples:
  bash:  flexkv completion bash > /etc/bash_completion.d/flexkv     (or: source <(flexkv completion bash))
  zsh:   flexkv completion zsh > "${fpath[1]}/_flexkv"
  fish:  flexkv completion fish > ~/.config/fish/completions/flexkv.fish
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `completion` to the commands of `flexkv`."""
    parser = commands.add_parser(
        "completion",
        help="shell completion",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.add_argument("--json", action="store_true", help='print {"shell": …, "script": …} instead')
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    script = shellcode(["flexkv"], shell=chosen.shell)
    print(json.dumps({"shell": chosen.shell, "script": script}) if chosen.json else script)
    return 0
