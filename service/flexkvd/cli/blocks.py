"""`flexkv story`, `blocks`, `pin`, `pins` and `unpin`: single blocks: where they are, why, and holding them there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output, words
from flexkvd.cli.admin import AdminClient, path_of
from flexkvd.cli.arguments import KEY_DIGITS, KEY_HEADING, block_key, given_keys, key_prefix, positive, seconds
from flexkvd.cli.connecting import add_command, client_of

LISTED_DEFAULT = 100
PAGE_BLOCKS_MAX = 500
"""Blocks of one answer of the API."""
NAMED_MAX = 5
TTL_S_DEFAULT = 3600.0
KEYS_HELP = "keys of blocks; - reads them from standard input, the first word of each line"

Answer = Mapping[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `story`, `blocks`, `pin`, `pins` and `unpin` to the commands of `flexkv`."""
    about = (
        "Says why a block is or is not a hit now, where its copies are, and what happened to it. The beginning of "
        "a key will do where only one block has it. With --json the answer of GET /v1/blocks/KEY/story, and "
        "`copies`."
    )
    parser = add_command(commands, "story", "why a block is where it is", about, ("flexkv story 5f0c1b2a",))
    parser.add_argument("key", type=key_prefix, metavar="KEY", help="the block's key, or how it begins")
    parser.set_defaults(run=run_story)
    about = "Lists blocks by key. With --json {blocks, next} as GET /v1/blocks answers."
    examples = ("flexkv blocks", "flexkv blocks 5f --limit 1000", "flexkv blocks --all | grep ' ssd'")
    parser = add_command(commands, "blocks", "list blocks by key", about, examples)
    parser.add_argument("prefix", nargs="?", default="", type=key_prefix, metavar="PREFIX", help="how keys begin (any)")
    parser.add_argument("--after", type=block_key, metavar="KEY", help="go on after this key")
    parser.add_argument(
        "--limit", type=positive, default=LISTED_DEFAULT, metavar="N", help=f"list at most N ({LISTED_DEFAULT})"
    )
    parser.add_argument("--all", action="store_true", help="list all, however many")
    parser.set_defaults(run=run_blocks)
    _add_pins(commands)


def _add_pins(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Keeps blocks where they are until the time is over: no copy they have now is evicted. With --json the "
        "answer of POST /v1/pins. Exit code 5 when none of the blocks is known."
    )
    examples = ("flexkv pin 5f0c1b2a39485766758493a2b1c0dfee --ttl 2h", "flexkv blocks 5f | flexkv pin -")
    parser = add_command(commands, "pin", "keep blocks where they are for a time", about, examples)
    parser.add_argument("keys", nargs="+", type=block_key, metavar="KEY", help=KEYS_HELP)
    parser.add_argument("--ttl", type=seconds, default=TTL_S_DEFAULT, metavar="TIME", help="how long (1h)")
    parser.set_defaults(run=run_pin)
    about = "Lists what is pinned. With --json the answer of GET /v1/pins."
    add_command(commands, "pins", "list what is pinned", about, ("flexkv pins",)).set_defaults(run=run_pins)
    about = "Ends pins before their time. With --json the answer of POST /v1/unpin."
    examples = ("flexkv unpin 5f0c1b2a39485766758493a2b1c0dfee", "flexkv pins | flexkv unpin -")
    parser = add_command(commands, "unpin", "end pins", about, examples)
    parser.add_argument("keys", nargs="+", type=block_key, metavar="KEY", help=KEYS_HELP)
    parser.set_defaults(run=run_unpin)


def run_story(chosen: argparse.Namespace) -> int:
    """Explanation, copies and events of one block."""
    client = client_of(chosen)
    key = whole_key(client, chosen.key)
    story = client.call("GET", path_of("blocks", key, "story"))
    try:
        copies = client.call("GET", path_of("blocks", key))["copies"]
    except FlexKVError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        copies = []  # a block in no tier has a story all the same
    output.emit(chosen, {**story, "copies": copies}, view_story)
    return 0


def whole_key(client: AdminClient, prefix: str) -> str:
    """The one key that begins like this. Raises FlexKVError: NOT_FOUND for none, BAD_ARGUMENT for several."""
    if len(prefix) == KEY_DIGITS:
        return prefix
    found = client.call("GET", path_of("blocks", prefix=prefix, limit=NAMED_MAX + 1))["blocks"]
    keys = list(dict.fromkeys(block["key"] for block in found))
    if not keys:
        why = f"no block's key begins with {prefix}: one that is in no tier has a story too, by its whole key"
        raise FlexKVError(ErrorCode.NOT_FOUND, why)
    if len(keys) > 1:
        more = " and more" if len(keys) > NAMED_MAX else ""
        why = f"{prefix!r} begins several keys ({', '.join(keys[:NAMED_MAX])}{more}): give more digits"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    return str(keys[0])


def run_blocks(chosen: argparse.Namespace) -> int:
    """Page by page, so that any number of blocks can be listed."""
    client, after, left = client_of(chosen), chosen.after, None if chosen.all else chosen.limit
    blocks: list[dict[str, Any]] = []
    while left is None or left > 0:
        limit = min(PAGE_BLOCKS_MAX, PAGE_BLOCKS_MAX if left is None else left)
        page = client.call("GET", path_of("blocks", prefix=chosen.prefix or None, after=after, limit=limit))
        left = None if left is None else left - len(page["blocks"])
        blocks += page["blocks"]
        after = page["next"]
        if after is None or not page["blocks"]:
            break
    output.emit(chosen, {"blocks": blocks, "next": after}, view_blocks)
    if after is not None and not chosen.json:
        output.note(f"there are more: --after {after}, or --all")
    return 0


def run_pin(chosen: argparse.Namespace) -> int:
    """Pin what is known of the keys."""
    body = {"keys": given_keys(chosen.keys), "ttl_s": chosen.ttl}
    answer = client_of(chosen).call("POST", path_of("pins"), body)
    output.emit(chosen, answer, view_pinned)
    if not answer["pinned"] and answer["missing"]:
        raise FlexKVError(ErrorCode.NOT_FOUND, "no block has any of these keys: `flexkv blocks` lists those there are")
    return 0


def run_pins(chosen: argparse.Namespace) -> int:
    """What is pinned."""
    output.emit(chosen, client_of(chosen).call("GET", path_of("pins")), view_pins)
    return 0


def run_unpin(chosen: argparse.Namespace) -> int:
    """End pins."""
    answer = client_of(chosen).call("POST", path_of("unpin"), {"keys": given_keys(chosen.keys)})
    output.emit(chosen, answer, lambda told: [f"unpinned {told['unpinned']} blocks"])
    return 0


def view_story(answer: Answer) -> Iterator[RenderableType]:
    """Of {key, explanation, events, copies}."""
    yield Text(answer["key"], style="bold")
    yield answer["explanation"]
    if answer["copies"]:
        yield from view_blocks({"blocks": answer["copies"]})
    events = output.table("ago", "what", "tier", "why", right=(0,))
    for event in answer["events"]:
        events.add_row(words.span(event["age_s"]), event["what"], event["tier"], event["detail"])
    if answer["events"]:
        yield events


def view_blocks(answer: Answer) -> Iterator[RenderableType]:
    """Of {blocks}; the key comes first, so that the list can be piped into other commands."""
    made = output.table(KEY_HEADING, "tiers", "size", "uses", "hit", "tenant", "held", right=(2, 3), gap=1)
    for block in answer["blocks"]:
        made.add_row(
            block["key"],
            ",".join(block["tiers"]) or words.NONE,
            words.size(block["bytes"]),
            f"{block['uses']}",
            "yes" if block["matchable"] else "no",
            block["tenant"] + (f" shard {block['shard']}" if block["shard"] else ""),
            held_words(block),
        )
    yield made if answer["blocks"] or not sys.stdout.isatty() else "no block"


def held_words(block: Answer) -> str:
    """What keeps it from eviction."""
    held = [name for name in ("pinned", "leased") if block[name]]
    return ", ".join(held + (["read"] if block["readers"] else []))


def view_pinned(answer: Answer) -> Iterator[RenderableType]:
    """Of {pinned, missing, bytes, expires_in_s}."""
    yield f"pinned {answer['pinned']} blocks, {words.size(answer['bytes'])}, for {words.span(answer['expires_in_s'])}"
    for key in answer["missing"]:
        yield f"no such block: {key}"


def view_pins(answer: Answer) -> Iterator[RenderableType]:
    """Of {pins}; the key comes first, as in the list of blocks."""
    made = output.table(KEY_HEADING, "tiers", "size", "ends in", right=(2, 3))
    for pin in answer["pins"]:
        made.add_row(pin["key"], ",".join(pin["tiers"]), words.size(pin["bytes"]), words.span(pin["expires_in_s"]))
    yield made if answer["pins"] or not sys.stdout.isatty() else "nothing is pinned"
