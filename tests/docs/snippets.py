"""Code blocks of documents: found, with their language, and with the reason where one cannot run here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Snippet:
    document: str
    language: str
    text: str
    line: int
    reason: str | None
    """Why it cannot run here."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def snippets(document: str) -> list[Snippet]:
    """All blocks of a document, in its order."""
    text = (ROOT / document).read_text()
    return [
        Snippet(document, match["language"], match["text"], text.count("\n", 0, match.start("text")), match["reason"])
        for match in BLOCK.finditer(text)
    ]


def documents() -> list[str]:
    """Every document that somebody wrote by hand."""
    generated = {"docs/rest.md", "docs/cli.md"}
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tiers/*.md")]
    return sorted({str(path.relative_to(ROOT)) for path in paths} - generated)
