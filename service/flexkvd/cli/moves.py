"""`flexkv prefetch`, `evict`, `demote` and `flush`: blocks moved at an operator's wish, as jobs of the daemon."""

from __future__ import annotations

import argparse

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.admin import path_of
from flexkvd.cli.arguments import block_key, byte_size, given_keys, key_prefix, seconds
from flexkvd.cli.blocks import KEYS_HELP
from flexkvd.cli.connecting import add_command, client_of
from flexkvd.cli.following import add_detach, start

DEADLINE_S_DEFAULT = 60.0
KEEP_TIERS = ("dram", "ssd", "s3")
LOWER_TIERS = ("ssd", "s3")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prefetch`, `evict`, `demote` and `flush` to the commands of `flexkv`."""
    _add_prefetch(commands)
    _add_evict(commands)
    _add_demote(commands)
    about = "Copies every block down to a tier, admission aside. With --json the job at its end (GET /v1/jobs/ID)."
    parser = add_command(commands, "flush", "copy all blocks down", about, ("flexkv flush ssd --deadline 5m",))
    parser.add_argument("tier", choices=LOWER_TIERS, metavar="TIER", help=f"one of: {', '.join(LOWER_TIERS)}")
    _add_deadline(parser)
    add_detach(parser)
    parser.set_defaults(run=run_flush)


def _add_prefetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "Promotes blocks to DRAM ahead of need. With --json the job at its end (GET /v1/jobs/ID)."
    examples = (
        "flexkv prefetch 5f0c1b2a39485766758493a2b1c0dfee",
        "flexkv blocks 5f | flexkv prefetch - --deadline 2m",
    )
    parser = add_command(commands, "prefetch", "promote blocks to DRAM", about, examples)
    parser.add_argument("keys", nargs="+", type=block_key, metavar="KEY", help=KEYS_HELP)
    _add_deadline(parser)
    add_detach(parser)
    parser.set_defaults(run=run_prefetch)


def _add_evict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Drops copies from a tier: what has a copy below or may go for good; what must go down first is demoted. "
        "What is pinned, leased or being read stays, and is counted. With --json the job at its end (GET "
        "/v1/jobs/ID)."
    )
    choices = (
        "flexkv evict dram --bytes 1GiB",
        "flexkv evict dram --bytes 1GiB --except-tenant team-a   # make room for team-a",
        "flexkv evict ssd --tenant team-b",
    )
    parser = add_command(commands, "evict", "make room in a tier", about, choices)
    parser.add_argument("tier", choices=KEEP_TIERS, metavar="TIER", help=f"one of: {', '.join(KEEP_TIERS)}")
    parser.add_argument("keys", nargs="*", type=block_key, metavar="KEY", help=KEYS_HELP)
    _add_selection(parser)
    parser.add_argument("--except-tenant", default="", metavar="NAME", help="blocks of all tenants but this one")
    parser.add_argument("--bytes", type=byte_size, metavar="SIZE", help="stop when this much is free (no limit)")
    parser.add_argument("--all", action="store_true", help="everything that may go")
    add_detach(parser)
    parser.set_defaults(run=run_evict)


def _add_demote(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Copies blocks down to a tier, admission aside; they stay where they are. With --json the job at its end "
        "(GET /v1/jobs/ID)."
    )
    examples = ("flexkv demote s3 --tenant team-a --deadline 10m", "flexkv demote ssd --prefix 5f")
    parser = add_command(commands, "demote", "copy chosen blocks down", about, examples)
    parser.add_argument("tier", choices=LOWER_TIERS, metavar="TIER", help=f"one of: {', '.join(LOWER_TIERS)}")
    parser.add_argument("keys", nargs="*", type=block_key, metavar="KEY", help=KEYS_HELP)
    _add_selection(parser)
    _add_deadline(parser)
    add_detach(parser)
    parser.set_defaults(run=run_demote)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix", type=key_prefix, default="", metavar="HEX", help="blocks whose keys begin like this"
    )
    parser.add_argument("--tenant", default="", metavar="NAME", help="blocks of this tenant")


def _add_deadline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deadline", type=seconds, default=DEADLINE_S_DEFAULT, metavar="TIME", help="give up after (60s)"
    )


def run_prefetch(chosen: argparse.Namespace) -> int:
    """Promote."""
    body = {"keys": given_keys(chosen.keys), "deadline_s": chosen.deadline}
    return start(chosen, client_of(chosen), path_of("prefetch"), body)


def run_evict(chosen: argparse.Namespace) -> int:
    """Make room. Raises FlexKVError when nothing says which blocks."""
    body = {"tier": chosen.tier, **_selection(chosen)}
    if chosen.except_tenant:
        body["except_tenant"] = chosen.except_tenant
    if chosen.bytes:
        body["bytes"] = chosen.bytes
    if len(body) == 1 and not chosen.all:
        why = "nothing says what is to go: give --bytes, KEY, --prefix or --tenant, or --all for all that may"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    return start(chosen, client_of(chosen), path_of("evict"), body)


def run_demote(chosen: argparse.Namespace) -> int:
    """Copy down what was selected. Raises FlexKVError when nothing was."""
    selection = _selection(chosen)
    if not selection:
        why = "nothing says which blocks: give KEY, --prefix or --tenant; flexkv flush copies all of them"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    body = {"to_tier": chosen.tier, "deadline_s": chosen.deadline, **selection}
    return start(chosen, client_of(chosen), path_of("demote"), body)


def run_flush(chosen: argparse.Namespace) -> int:
    """Copy everything down."""
    return start(chosen, client_of(chosen), path_of("flush"), {"to_tier": chosen.tier, "deadline_s": chosen.deadline})


def _selection(chosen: argparse.Namespace) -> dict[str, object]:
    """What was given of keys, prefix and tenant."""
    given = {"keys": given_keys(chosen.keys), "prefix": chosen.prefix, "tenant": chosen.tenant}
    return {name: each for name, each in given.items() if each}
