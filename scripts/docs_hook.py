"""What the site generator must be told beside mkdocs.yml: documents link to files of the repository outside docs/.

Such a file becomes part of the site under `repository/`, and links to it lead there; so the same link works on the site
and where the repository is browsed. MkDocs calls it during `scripts/docs`. It changes no file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
INSIDE = "repository"
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "tiers/README.md")
"""Documents outside docs/ that stand in the navigation."""


def place(source: str, target: str) -> PurePosixPath:
    """Where the file lies in the repository that `source`, a page of the site, links to as `target`."""
    here = PurePosixPath(source)
    base = here.relative_to(INSIDE).parent if here.parts[0] == INSIDE else PurePosixPath("docs") / here.parent
    at = PurePosixPath(os.path.normpath(base / target))
    return at / "__init__.py" if (ROOT / at).is_dir() else at  # a package is shown by what it says of itself


def site_path(at: PurePosixPath) -> str:
    """The path on the site of a file of the repository."""
    return str(at.relative_to("docs")) if at.parts[0] == "docs" else f"{INSIDE}/{at}"


def linked(source: str, text: str) -> set[PurePosixPath]:
    """Files outside docs/ that a page links to."""
    targets = {place(source, match[2]) for match in LINK.finditer(text)}
    return {at for at in targets if at.parts[0] != "docs" and (ROOT / at).is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside docs/ that pages link to, and the documents of the navigation."""
    pages = {f"{INSIDE}/{name}": (ROOT / name).read_text() for name in PAGES}
    pages |= {file.src_uri: file.content_string for file in files.documentation_pages()}
    wanted = {PurePosixPath(name) for name in PAGES}.union(*(linked(source, text) for source, text in pages.items()))
    for at in sorted(wanted):
        files.append(File.generated(config, site_path(at), abs_src_path=str(ROOT / at)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Makes links that leave docs/ lead to `repository/`."""
    source = page.file.src_uri

    def rewritten(match: re.Match[str]) -> str:
        at = place(source, match[2])
        target = os.path.relpath(site_path(at), PurePosixPath(source).parent)
        return f"{match[1]}{target}{match[3] or ''}{match[4]}"

    return LINK.sub(rewritten, markdown)
