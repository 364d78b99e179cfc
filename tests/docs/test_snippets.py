"""No code block goes unread: each is run, parsed or looked up by a test, or says why it cannot be."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
from pathlib import Path

import pytest

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_tiers.hbm.worker import RowPath
from flexkvd.main import main
from tests.docs.snippets import ROOT, Snippet, documents, snippets
from tests.docs.test_recipes import PAGES
from tests.service.conftest import GEOMETRY, DaemonThread

ALL = [each for document in documents() for each in snippets(document)]
RUN_IN_A_SHELL = {"README.md", "docs/quick-start.md", *PAGES}
PYTHON_RUN_BY = {
    "README.md": "tests/docs/test_snippets.py",
    "docs/decoding.md": "tests/service/test_decoding.py",
    "docs/embedding.md": "tests/service/test_embedding.py",
    "docs/row-path.md": "tests/docs/test_snippets.py",
    "docs/selections.md": "tests/docs/test_snippets.py",
}
"""The test that runs a page's Python, or looks up what it calls."""


def of(language: str) -> list[Snippet]:
    return [each for each in ALL if each.language == language]


def test_every_block_says_what_it_is() -> None:
    """Each has a language that somebody here looks after; there is a good number of them."""
    known = {"sh", "python", "toml", "json", "ini", "text"}
    assert [str(each) for each in ALL if each.language not in known] == []
    assert len(ALL) > 50


def test_every_fence_is_found() -> None:
    """No block hides from these tests: as many are found as there are pairs of fences."""
    fences = {name: len(re.findall(r"^ *```", (ROOT / name).read_text(), re.MULTILINE)) for name in documents()}
    assert {name: 2 * len(snippets(name)) for name in documents()} == fences


def test_every_command_is_run_or_says_why_not() -> None:
    """Blocks for the shell are on pages whose commands run, or name the reason."""
    assert [str(each) for each in of("sh") if each.document not in RUN_IN_A_SHELL and each.reason is None] == []


def test_every_program_is_run() -> None:
    """Python is on pages that a test of that name reads, and is Python."""
    assert {each.document for each in of("python")} == PYTHON_RUN_BY.keys()
    assert [name for name, test in PYTHON_RUN_BY.items() if name not in (ROOT / test).read_text()] == []
    for each in of("python"):
        ast.parse(each.text, filename=str(each))


@pytest.mark.parametrize("snippet", of("toml"), ids=str)
def test_a_configuration_is_accepted(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`flexkvd --check-config` has nothing against it, on a machine that has what it names."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    text = snippet.text
    if "[daemon]" not in text:
        text += f'\n[daemon]\nsocket = "{tmp_path}/worker.sock"\n[api]\nsocket = "{tmp_path}/admin.sock"\n'
    (tmp_path / "flexkvd.toml").write_text(text)
    status = main(["--check-config", "--config", str(tmp_path / "flexkvd.toml")])
    assert status == 0, capsys.readouterr()


def test_what_is_shown_as_data_can_be_read() -> None:
    """JSON is JSON, and a drop-in of a unit has sections with keys."""
    for each in of("json"):
        json.loads(each.text)
    for each in of("ini"):
        parser = configparser.ConfigParser(strict=True)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(each.text)
        assert all(parser.items(section) for section in parser.sections())
    assert of("ini")


def test_the_front_doors_worker_saves_and_loads(tmp_path: Path) -> None:
    """README.md's `prefill` against a daemon: nothing is a hit at first, then all of it is, and more is saved."""
    [snippet] = [each for each in of("python") if each.document == "README.md"]
    names: dict[str, object] = {}
    exec(compile(snippet.text, str(snippet), "exec"), names)  # the document's own code
    prefill = names["prefill"]
    assert callable(prefill)
    layout = PagedLayout(GEOMETRY, page_count=4, page_tokens=GEOMETRY.tokens_per_block)
    descriptor = create_memory(layout.bytes)
    daemon = DaemonThread(tmp_path)
    try:
        with Client(daemon.socket, GEOMETRY) as client:
            memory = client.register_memory(
                descriptor,
                bytes=layout.bytes,
                page_count=layout.page_count,
                page_tokens=layout.page_tokens,
                layout=layout.layers,
            )
            for length, hit in ((2, 0), (2, 2), (4, 2), (4, 4)):
                tokens = list(range(length * GEOMETRY.tokens_per_block))
                assert client.match(client.keys(tokens)).length == hit
                prefill(client, memory, tokens, list(range(length)))
    finally:
        os.close(descriptor)
        assert daemon.stop() == 0


def test_the_row_paths_step_calls_what_there_is() -> None:
    """Every method that docs/row-path.md calls on its `path` is one of `RowPath`."""
    [snippet] = [each for each in of("python") if each.document == "docs/row-path.md"]
    called = {
        node.attr
        for node in ast.walk(ast.parse(snippet.text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "path"
    }
    assert len(called) > 5
    assert [name for name in called if not callable(getattr(RowPath, name, None))] == []


def test_selections_are_made_as_shown() -> None:
    """The loop of docs/selections.md, over a short sequence."""
    [snippet] = [each for each in of("python") if each.document == "docs/selections.md"]
    shown, smaller = "tokens=262_144, cluster=64, requests=4", "tokens=4_096, cluster=64, requests=1, steps=2"
    small = snippet.text.replace(shown, smaller)
    assert small != snippet.text
    names: dict[str, object] = {}
    exec(compile(small, str(snippet), "exec"), names)  # the document's own code
    assert names["selection"] is not None
