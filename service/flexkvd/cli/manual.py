"""The reference of all commands as Markdown, made from their parsers: `python -m flexkvd.cli.manual > docs/cli.md`.

Owns the shape of `docs/cli.md`; a test says when that is out of date. Every word comes from the parsers and `exits`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from flexkvd.cli import make_parser
from flexkvd.cli.connecting import ADDRESS_VARIABLE, TOKEN_FILE_VARIABLE
from flexkvd.cli.exits import MEANINGS

SHARED = ("json", "address", "token_file", "ca_file", "timeout")
"""Options of nearly every command, told once."""
HEAD = f"""\
# The command `flexkv`

Made from the commands by `python -m flexkvd.cli.manual > docs/cli.md`; `flexkv COMMAND --help` says the same.

Commands that ask the daemon find it at `--address`, else at `${ADDRESS_VARIABLE}`, else at its default socket. Where
its API asks for a token, `--token-file` or `${TOKEN_FILE_VARIABLE}` names the file that has it; a token never stands on
a command line. With `--json` standard output is one JSON object and nothing else, in the shape of the REST route that
the command names ([rest.md](rest.md)); an error is `{{"error": {{"code": …, "message": …}}}}` then, and a line on
stderr in any case ([errors.md](errors.md)). Progress goes to stderr, and only to a terminal. Ctrl-C while a job is
followed asks the daemon to cancel it.

Completion: `flexkv completion bash` (or `zsh`, `fish`) prints what the shell is to source.
"""


def manual() -> str:
    """The whole page."""
    [commands] = _inner(make_parser())
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    lines = [HEAD, "## Exit codes\n", "| code | meaning |", "|---|---|"]
    lines += [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += ["\n## Commands\n", "| command | |", "|---|---|"]
    lines += [f"| [`{name}`](#flexkv-{name}) | {helps[name]} |" for name in commands.choices]
    shared = [action for action in commands.choices["status"]._actions if action.dest in SHARED]
    lines += ["\nOptions of nearly all of them:\n", *_table(shared)]
    for name, command in commands.choices.items():
        lines += _command(name, command)
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """One command, and those that it consists of."""
    actions = [action for action in parser._actions if action.dest != "help" and not _is_shared(action)]
    options = "[options]" if any(action.option_strings for action in actions) else ""
    shown = [_usage(action) for action in actions if not action.option_strings]
    yield f"\n## flexkv {name}\n"
    yield f"`{' '.join(['flexkv', name, *filter(None, [options]), *shown])}`\n"
    yield _words(parser.description or "").strip()
    if named := [action for action in actions if not isinstance(action, argparse._SubParsersAction)]:
        yield ""
        yield from _table(named)
    yield f"\n```\n{(parser.epilog or '').partition('examples:')[2].strip(chr(10))}\n```"
    for inner in _inner(parser):
        for action_name, action_parser in inner.choices.items():
            yield from _command(f"{name} {action_name}", action_parser)


def _inner(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _is_shared(action: argparse.Action) -> bool:
    """Some commands have something else by the name of a shared option: a file to write, another token."""
    is_other = (action.dest == "json" and action.nargs != 0) or (
        action.dest == "token_file" and TOKEN_FILE_VARIABLE not in (action.help or "")
    )
    return action.dest in SHARED and not is_other


def _table(actions: Sequence[argparse.Action]) -> Iterator[str]:
    yield "| argument | meaning |"
    yield "|---|---|"
    for action in actions:
        words = " ".join(filter(None, [*action.option_strings[:1], _value(action)]))
        meaning = (action.help or "").replace("%(default)s", f"{action.default}").replace("%%", "%")
        yield f"| `{words.replace('|', chr(92) + '|')}` | {_words(meaning)} |"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    return str(action.metavar or (action.dest.upper() if action.choices is None else "|".join(action.choices)))


def _usage(action: argparse.Action) -> str:
    word = _value(action)
    return {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} [{word} ...]"}.get(str(action.nargs), word)


def _words(text: str) -> str:
    """Nothing that ends a cell, or begins a link or a tag: square brackets are tables of the configuration here."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    print(manual(), end="")
