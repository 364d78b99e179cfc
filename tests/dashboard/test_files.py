"""The dashboard's files as they are served and shipped: no browser needed."""

from __future__ import annotations

import asyncio
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hatchling.build import build_wheel

from flexkvd.api import dashboard
from flexkvd.api.app import make_app

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "service/flexkvd/dashboard").iterdir())
LINES_MAX = 400
LINE_LENGTH_MAX = 120
NAMESPACES = {"http://www.w3.org/2000/svg"}


def answers(*requests: tuple[str, dict[str, str]]) -> list[httpx.Response]:
    """What the routes answer to (path, headers). On a thread: this one may have the browser's loop."""
    app = make_app(None)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return [await client.get(path, headers=headers) for path, headers in requests]

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, ask()).result()


def test_every_file_is_served_with_its_type_and_rules() -> None:
    """Each file comes as it is on disk, under a policy that lets nothing in from elsewhere, and 304 when known."""
    paths = ["/", *(f"/dashboard/{path.name}" for path in FILES)]
    first, *others = answers(*((path, {}) for path in paths))
    assert first.content == (ROOT / "service/flexkvd/dashboard/index.html").read_bytes()
    for path, answer in zip(FILES, others, strict=True):
        assert (answer.status_code, answer.content) == (200, path.read_bytes())
        assert answer.headers["content-type"] == dashboard.MEDIA_TYPES[path.suffix]
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_known_file_is_not_sent_again() -> None:
    """A browser that names the tag of what it has is answered 304, and 200 with another's."""
    tag = dashboard.read_files()["main.js"].tag
    known, changed = answers(
        ("/dashboard/main.js", {"If-None-Match": tag}), ("/dashboard/main.js", {"If-None-Match": '"other"'})
    )
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    assert changed.status_code == 200


def test_nothing_else_is_served() -> None:
    """Whatever path is tried, what was not a file of the dashboard at start is not found."""
    tried = ["nope.js", "..%2f__init__.py", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/main.py", "main.js%00", "."]
    assert [answer.status_code for answer in answers(*((f"/dashboard/{name}", {}) for name in tried))] == [404] * len(
        tried
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_small_and_asks_nobody_else(path: Path) -> None:
    """At most 400 lines, no address but the daemon's own, and every file it names is there."""
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= NAMESPACES
    named = re.findall(r"(?:from \"\./|(?:href|src)=\"dashboard/)([^\"]+)\"", text)
    assert [name for name in named if name not in {each.name for each in FILES}] == []
    if path.suffix == ".js":
        assert max(map(len, text.splitlines())) <= LINE_LENGTH_MAX
        assert "innerHTML" not in text


def test_the_wheel_brings_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel built from this tree has every file of the dashboard in it, byte for byte."""
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / build_wheel(os.fspath(tmp_path))) as wheel:
        for path in FILES:
            assert wheel.read(f"flexkvd/dashboard/{path.name}") == path.read_bytes()
