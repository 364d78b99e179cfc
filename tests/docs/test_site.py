"""The site can be built, and what is wrong with a page ends the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

pytestmark = pytest.mark.timeout(240)


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The site made of the pages of `folder`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=220, check=False)


def copied(folder: Path) -> Path:
    """The documents and what they link to, where they may be changed."""
    for name in ("docs", "scripts", "service", "tiers", "demo", "flexkv_py"):
        ignored = shutil.ignore_patterns("__pycache__", "*.png")
        shutil.copytree(ROOT / name, folder / name, ignore=None if name == "docs" else ignored)
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, folder)
    return folder


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """As `scripts/docs` does it: every link and anchor leads somewhere, every page is in the navigation.

    Nothing of a page is fetched from elsewhere.
    """
    ended = build(ROOT, "--site-dir", str(tmp_path / "site"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "site/quick-start.html").exists()
    assert (tmp_path / "site/repository/ARCHITECTURE.html").exists()
    fetched = re.compile(r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*rel="stylesheet"[^>]*href="https?:')
    assert [path.name for path in tmp_path.rglob("*.html") if fetched.search(path.read_text())] == []


def test_a_doubtful_page_ends_the_build(tmp_path: Path) -> None:
    """A link to nowhere, an anchor that is not there, and a page outside the navigation are all named."""
    folder = copied(tmp_path)
    (folder / "docs/lost.md").write_text("# Lost\n")
    with (folder / "docs/security.md").open("a") as page:
        page.write("\n[one](gone.md) [two](../gone.py) [three](rest.md#nowhere)\n")
    ended = build(folder)
    assert ended.returncode != 0
    named = ("lost.md", "'gone.md'", "repository/gone.py", "#nowhere")
    assert [each for each in named if each not in ended.stderr] == []
