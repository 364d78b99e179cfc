"""What the pages quote is what the program says: metrics, settings, and the words of stories."""

from __future__ import annotations

import re

import pytest

from flexkv_py.errors import ErrorCode
from flexkvd.config import describe
from flexkvd.families import FAMILIES
from tests.docs.snippets import ROOT, documents

SUFFIXES = ("", "_bucket", "_count", "_sum")
PACKAGES = {"flexkv_py", "flexkv_tiers", "flexkv_tenant_"}
SETTING = re.compile(r"`\[?(\w+)\]?[. ](\w+)(?:`| = )")
of_each = pytest.mark.parametrize("document", documents())


@of_each
def test_metrics_that_are_named_exist(document: str) -> None:
    """A metric in a text is one that is served."""
    served = {family.name + suffix for family in FAMILIES for suffix in SUFFIXES} | PACKAGES
    named = set(re.findall(r"`(flexkv_[a-z0-9_]+)", (ROOT / document).read_text()))
    assert named - served == set()


@pytest.mark.parametrize("document", [each for each in documents() if each != "ARCHITECTURE.md"])  # it names modules
def test_settings_that_are_named_exist(document: str) -> None:
    """A key of a table of the configuration is one that is read."""
    known = {(key.table, key.name) for key in describe()}
    tables = {table for table, _ in known}
    named = {each for each in SETTING.findall((ROOT / document).read_text()) if each[0] in tables}
    assert named - known == set()


def test_troubleshooting_quotes_stories() -> None:
    """Each reason of an eviction that docs/troubleshooting.md explains stands so in the planner."""
    text = (ROOT / "docs/troubleshooting.md").read_text()
    table = text[text.index("| the story says |") : text.index("### Its parent is missing")]
    quoted = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    planner = "".join(path.read_text() for path in (ROOT / "flexkv_py").rglob("*.py"))
    assert len(quoted) > 5
    assert [words for words in quoted if words not in planner] == []


def test_headings_that_name_codes_name_real_ones() -> None:
    """A heading of docs/troubleshooting.md with a code in it has one of errors.md."""
    headings = re.findall(r"^### .*`(\w+)`", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert headings
    assert set(headings) <= {code.value for code in ErrorCode}
