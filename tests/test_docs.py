"""What exists is documented: every module, setting, route, metric and error code; and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

from flexkv_py.errors import ErrorCode

ROOT = Path(__file__).parents[1]
PACKAGES = {"flexkv_py": "flexkv_py", "flexkv_tiers": "tiers/flexkv_tiers", "flexkvd": "service/flexkvd"}


def modules() -> set[str]:
    """Dotted names of every module; a package counts as one module if it holds code of its own."""
    found = set()
    for name, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.add(".".join((name, *parts)).removesuffix(".__init__"))
    return found


def first_cells(document: str) -> list[str]:
    """The first cell of every table row that begins with a word in backticks."""
    return re.findall(r"^\| `([^`]+)`", (ROOT / document).read_text(), re.MULTILINE)


def test_every_module_has_its_line():
    """ARCHITECTURE.md has one line for each module, and none for a module that is gone."""
    assert sorted(first_cells("ARCHITECTURE.md")) == sorted(modules())


def test_every_error_is_explained():
    """docs/errors.md gives cause and cure of each code, once."""
    assert sorted(first_cells("docs/errors.md")) == sorted(code.value for code in ErrorCode)
