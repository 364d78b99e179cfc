"""The demo's verdict: what counts as shown, and what does not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from demo.messages import WorkResult
from demo.meter import link_bytes
from demo.report import Phase, Served, link_table_of, percentile, table_of, verdict


def result(**changes: Any) -> WorkResult:
    fields: dict[str, Any] = {
        "tokens": [1, 2, 3],
        "logits_digest": "a",
        "ttft_s": 0.1,
        "total_s": 0.2,
        "blocks": 10,
        "hits": {"dram": 5, "ssd": 4},
        "recomputed": False,
        "saved": {},
        "errors": [],
    }
    return WorkResult(**(fields | changes))


def phase_of(*results: WorkResult, reference: WorkResult | None = None) -> Phase:
    phase = Phase("warm", ("dram", "ssd"), is_warm=True, wall_s=1.0, reference_wall_s=2.0)
    phase.served = [Served(at, 0, one, reference or result(ttft_s=0.4, hits={})) for at, one in enumerate(results)]
    return phase


def test_a_phase_that_showed_everything_has_no_complaints() -> None:
    """The same tokens and logits, hits from every wanted tier, a smaller TTFT: nothing to say."""
    assert verdict([phase_of(result(), result())]) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": [1, 2, 4]}, "session 0 turn 0: other tokens"),
        ({"logits_digest": "b"}, "same tokens from other logits"),
        ({"hits": {"dram": 9}}, "no block was served from ssd"),
        ({"ttft_s": 0.5}, "median TTFT is 0.500 s with the daemon, 0.400 s without"),
    ],
)
def test_whatever_was_not_shown_is_named(changes: dict[str, Any], complaint: str) -> None:
    """Another token, another logit, a tier that served nothing, or no gain in TTFT fails the phase."""
    [found] = verdict([phase_of(result(**changes))])
    assert complaint in found


def test_the_table_and_the_file_carry_the_figures() -> None:
    """The table shows both runs side by side and NO where a token differs; the JSON figures agree with it."""
    phase = phase_of(result(), result(tokens=[9]))
    phase.link_bytes = {"ssd_dram": 3 << 20, "s3_dram": 0}
    console = Console(file=io.StringIO(), width=160)
    console.print(table_of([phase]), link_table_of([phase]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("100 (400)", "50%", "40%", "ssd→dram", "3.0", "NO"):
        assert text in shown
    assert "s3→dram" not in shown
    figures = phase.figures()
    assert figures["hit_blocks"] == {"dram": 10, "ssd": 8}
    assert figures["tokens_identical"] is False
    assert figures["tokens_per_s"] == 4.0


def test_percentiles_interpolate() -> None:
    """One value is every percentile; among many, neighbours are weighted."""
    assert percentile([7.0], 95) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([0.0, 100.0], 95) == pytest.approx(95.0)


def test_link_bytes_are_read_from_the_daemons_samples() -> None:
    """Only the link counter is taken, by its label."""
    samples = {
        ("flexkv_link_bytes_total", (("link", "ssd_dram"),)): 4096.0,
        ("flexkv_link_faults_total", (("fault", "io"), ("link", "ssd_dram"))): 1.0,
        ("flexkv_sessions", ()): 4.0,
    }
    assert link_bytes(samples) == {"ssd_dram": 4096}
