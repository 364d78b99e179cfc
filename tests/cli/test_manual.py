"""docs/cli.md says what the parsers say, every command says enough of itself, and errors have their exit codes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import MODULES, main, make_parser
from flexkvd.cli.exits import MEANINGS, ExitCode, exit_code
from flexkvd.cli.manual import manual

ROOT = Path(__file__).parents[2]


def parsers() -> dict[str, argparse.ArgumentParser]:
    """All commands, those that others consist of too."""
    found: dict[str, argparse.ArgumentParser] = {}
    left = [("", make_parser())]
    while left:
        above, parser = left.pop()
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for action in inner:
            left += [(f"{above} {name}".strip(), each) for name, each in action.choices.items()]
        if not inner:
            found[above] = parser
    return found


def test_the_reference_is_up_to_date(monkeypatch):
    """docs/cli.md is what the parsers say: make it anew by `python -m flexkvd.cli.manual > docs/cli.md`."""
    for variable in ("FLEXKV_ADDRESS", "FLEXKV_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    assert (ROOT / "docs/cli.md").read_text() == manual()


def test_every_command_has_json_an_example_and_words_for_each_option():
    """No command without `--json`, an example that begins with itself, and help for all of its options."""
    assert {name.split()[0] for name in parsers()} == set(MODULES)
    for name, parser in parsers().items():
        assert any("--json" in action.option_strings for action in parser._actions), name
        assert "examples:" in (parser.epilog or ""), name
        assert f"flexkv {name}" in (parser.epilog or ""), name
        assert [action.dest for action in parser._actions if not action.help] == [], name


@pytest.mark.parametrize("name", sorted(MODULES))
def test_help_of_each_command_is_printed_alone(name, capsys):
    """Only the named command's module is imported for it, and its help ends with 0."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: flexkv {name}")


@pytest.mark.parametrize(
    ("code", "exit_with"),
    [
        (ErrorCode.BAD_ARGUMENT, 2),
        (ErrorCode.BAD_CONFIG, 2),
        (ErrorCode.DAEMON_LOST, 3),
        (ErrorCode.UNAUTHENTICATED, 4),
        (ErrorCode.FORBIDDEN, 4),
        (ErrorCode.NOT_FOUND, 5),
        (ErrorCode.DRAINING, 1),
        (ErrorCode.CONFLICT, 1),
    ],
)
def test_an_error_decides_the_exit_code(code, exit_with):
    """What scripts rely on: each kind of error has its own code, and each code its meaning."""
    assert exit_code(FlexKVError(code, "")) == exit_with
    assert set(MEANINGS) == set(ExitCode)
