"""Hostile workers beside a working one (`scripts/trials garbage` and `memories` run them at any length)."""

from pathlib import Path

import pytest

from .garbage import garbage
from .memories import deaf, holes, refused_offers


def test_twenty_thousand_hostile_messages_harm_nobody(tmp_path: Path) -> None:
    """Over many connections, garbage and impossible values: coded errors, no growth, the other client unharmed."""
    figures = garbage(tmp_path, messages=20_000)
    assert figures["answered by a code"] > 10_000
    assert figures["different codes"] > 10


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_hundred_thousand_hostile_messages_harm_nobody(tmp_path: Path) -> None:
    """The same for longer: what was learned in the first quarter is all that is ever kept."""
    garbage(tmp_path, messages=200_000, seed=2)


def test_unsuitable_memory_is_refused_with_cause_and_cure(tmp_path: Path) -> None:
    """Unsealed, a file, huge pages, too short, read-only, a pipe …: refused, and nothing of it stays open."""
    refused_offers(tmp_path)


def test_holes_growth_and_cuts_of_registered_memory_are_harmless(tmp_path: Path) -> None:
    """A worker that punches holes during loads and saves gets zeros; cutting is refused by the kernel."""
    holes(tmp_path, rounds=50)


def test_workers_that_read_no_reply_are_closed(tmp_path: Path) -> None:
    """Pipelining without reading ends the session at its limit, and what was kept for it is freed."""
    deaf(tmp_path)
