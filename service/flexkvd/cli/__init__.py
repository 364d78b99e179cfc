"""The `flexkv` command: everything a person types at the daemon. Each subcommand is a module here.

Owns the parser and the exit codes: 0 done, 1 the run found something wrong, 2 the command or its
input was wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flexkv_py import __version__
from flexkv_py.errors import FlexKVError
from flexkvd.cli import lifecycle, replay, replay_record, selections, verify

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `flexkv`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="flexkv", description="Commands around flexkvd, the KV-cache daemon.")
    parser.add_argument("--version", action="version", version=f"flexkv {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    replay.add_parser(commands)
    replay_record.add_parser(commands)
    selections.add_parser(commands)
    verify.add_parser(commands)
    lifecycle.add_parser(commands)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except FlexKVError as error:
        print(f"flexkv: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("flexkv: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
