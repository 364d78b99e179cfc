"""What a newcomer types first does what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.conftest import Shell
from tests.docs.snippets import snippets

pytestmark = pytest.mark.timeout(240)

INSTALLS = "scripts/venv && source .venv/bin/activate"


def commands(document: str) -> str:
    """All commands of a page, one after the other, as one shell session. What installs is left out."""
    parts = [each.text for each in snippets(document) if each.language == "sh" and each.reason is None]
    return "\n".join(parts).replace(INSTALLS, ":")


def test_the_quick_start_leads_to_a_hit_and_over_a_restart(shell: Shell, clone: Path) -> None:
    """Its commands as they stand: a miss, a hit from another process, an explanation, a hit after a restart.

    The lines it promises are among what they print.
    """
    said = shell(commands("docs/quick-start.md")).stdout
    [promised] = [each.text for each in snippets("docs/quick-start.md") if each.language == "text"]
    assert promised in said
    hits = re.findall(r"turn 0: (\d+) of 16 blocks were a hit", said)
    assert hits == ["0", "16", "16"]
    assert "a hit: whole in dram" in said
    assert not (clone / "try").exists()


def test_the_front_door_leads_to_a_hit(shell: Shell, clone: Path) -> None:
    """The commands of README.md as they stand."""
    said = shell(commands("README.md")).stdout
    assert re.findall(r"turn 0: (\d+) of 16 blocks were a hit", said) == ["0", "16"]
    assert not (clone / "try").exists()
