"""The `flexkv` command: everything a person types at the daemon. Each subcommand is a module here.

Owns the list of commands and how one ends; `exits` owns the codes. Only the module of the command that was named is
imported: the others bring numpy, boto3 and half a second.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from flexkv_py import __version__
from flexkv_py.errors import FlexKVError
from flexkvd.cli.exits import MEANINGS, ExitCode, exit_code

MODULES = {
    "status": "status",
    "top": "top",
    "tiers": "status",
    "sessions": "status",
    "story": "blocks",
    "blocks": "blocks",
    "pin": "blocks",
    "pins": "blocks",
    "unpin": "blocks",
    "prefetch": "moves",
    "evict": "moves",
    "demote": "moves",
    "flush": "moves",
    "drain": "serving",
    "resume": "serving",
    "jobs": "serving",
    "policy": "serving",
    "faults": "serving",
    "tenants": "tenants",
    "config": "settings",
    "bench": "measure",
    "doctor": "doctor",
    "completion": "completion",
    "record": "record",
    "replay-record": "replay_record",
    "replay": "replay",
    "selections": "selections",
    "verify": "verify",
    "s3-lifecycle": "lifecycle",
}
"""Each command and the module that adds its parser, in the order of the help."""

DEBUG_VARIABLE = "FLEXKV_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `flexkv`; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs gets question marks, not an error
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # noqa: PLC0415 - only a shell that completes needs it

        argcomplete.autocomplete(_parser_to_complete(os.environ.get("COMP_LINE", "")))
    named = next((word for word in given if not word.startswith("-")), "")
    chosen = make_parser([named] if named in MODULES else None).parse_args(given)
    as_json = getattr(chosen, "json", None) is True
    try:
        code = int(chosen.run(chosen))
        sys.stdout.flush()
    except FlexKVError as error:
        code = exit_code(error)
        _say(error, as_json=as_json)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        print("flexkv: interrupted", file=sys.stderr)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    except OSError as error:  # a full disk below `>`, a terminal that went
        code = ExitCode.WRONG
        print(f"flexkv: {error}: see to it, and ask again", file=sys.stderr)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        code = ExitCode.WRONG
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"flexkv: a bug: {said}. Report it with what {DEBUG_VARIABLE}=1 in front prints", file=sys.stderr)
    return code


def _parser_to_complete(line: str) -> argparse.ArgumentParser:
    """For a command line under way: of the command it names, else of commands that are names and nothing more."""
    named = line.split()[1:] if line.endswith(" ") else line.split()[1:-1]
    if named and named[0] in MODULES:
        return make_parser(named[:1])
    parser = argparse.ArgumentParser(prog="flexkv")
    commands = parser.add_subparsers()
    for name in MODULES:
        commands.add_parser(name)
    return parser


def make_parser(names: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser with these commands, or with all."""
    codes = "\n".join(f"  {code:3}  {meaning.split(':')[0]}" for code, meaning in MEANINGS.items())
    parser = argparse.ArgumentParser(
        prog="flexkv",
        description="Commands around flexkvd, the KV-cache daemon.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flexkv {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in dict.fromkeys(MODULES[name] for name in names or MODULES):
        import_module(f"flexkvd.cli.{module}").add_parser(commands)
    return parser


def _say(error: FlexKVError, *, as_json: bool) -> None:
    from flexkvd.cli.output import say_error  # noqa: PLC0415 - rich: 0.1 s that completion need not pay

    say_error(error, as_json=as_json)
