"""Which daemon a command talks to, and as whom: the options that all such commands share, and what they stand for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.admin import TIMEOUT_S, AdminClient
from flexkvd.cli.arguments import seconds

ADDRESS_DEFAULT = "/run/flexkvd/admin.sock"
ADDRESS_VARIABLE = "FLEXKV_ADDRESS"
TOKEN_FILE_VARIABLE = "FLEXKV_TOKEN_FILE"  # noqa: S105 - the name of a variable
ROLES = ("admin", "read")
"""As a token file may say before each token, the one with more rights first."""
TOKEN_LINES_MAX = 64
HELP_COLUMNS = 100


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    description: str,
    examples: Sequence[str],
    *,
    daemon: bool = True,
) -> argparse.ArgumentParser:
    """A parser for one command, with its examples, `--json`, and the options of `client_of` unless not `daemon`."""
    parser = commands.add_parser(
        name,
        help=summary,
        description="\n\n".join(fill(part, HELP_COLUMNS) for part in description.split("\n\n")),
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json(parser)
    if daemon:
        add_options(parser)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text for people")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the daemon is, and the token for it."""
    group = parser.add_argument_group("the daemon")
    group.add_argument(
        "--address",
        metavar="WHERE",
        default=os.environ.get(ADDRESS_VARIABLE) or ADDRESS_DEFAULT,
        help=f"its admin API: a Unix socket, host:port or URL (${ADDRESS_VARIABLE}, else {ADDRESS_DEFAULT})",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get(TOKEN_FILE_VARIABLE) or None,
        help=f"file with the token to send (${TOKEN_FILE_VARIABLE}, else none)",
    )
    group.add_argument("--ca-file", metavar="FILE", default="", help="certificates to trust instead of the system's")
    group.add_argument(
        "--timeout", type=seconds, metavar="TIME", default=TIMEOUT_S, help="longest wait for an answer (10s)"
    )


def client_of(chosen: argparse.Namespace) -> AdminClient:
    """A client as the options of `add_options` say. Raises FlexKVError for a token file that is none."""
    token = read_token_file(chosen.token_file) if chosen.token_file else ""
    return AdminClient(chosen.address, token, chosen.ca_file, chosen.timeout)


def read_token_file(path: str) -> str:
    """The token of most rights in a file as `[api] token_file`: a bare line, or lines `admin TOKEN`, `read TOKEN`.

    Raises FlexKVError (`bad_argument`).
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()[:TOKEN_LINES_MAX]
    except (OSError, UnicodeDecodeError) as error:
        why = f"token file {path!r} cannot be read ({getattr(error, 'strerror', None) or error}): name a readable one"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why) from error
    words = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for role in ROLES:
        for word in words:
            if len(word) == 2 and word[0] == role:
                return word[1]
    if words and len(words[0]) == 1:
        return words[0][0]
    why = f"token file {path!r} has no token: write it as the only word of a line, or as `admin TOKEN` or `read TOKEN`"
    raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
