"""What the verdicts of the row path's runs notice, and the account of pages that came back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from demo import rows_report, sweep_report
from demo.messages import DecodeOrder, DecodeResult
from demo.row_figures import Arrivals
from demo.rows_report import RowsCase
from demo.sweep_report import Point
from demo.tiered import Window
from flexkv_tiers.hbm.granted import PagesChange


def result(count: int, busy_s: float = 1.0, running: int | None = None, absent: int = 3) -> DecodeResult:
    tokens = [[seat, 7] for seat in range(count)]
    digests = [f"digest {seat}" for seat in range(count)]
    running = count if running is None else running
    return DecodeResult(tokens, digests, 2 * busy_s, busy_s, 5, 5 * running, running, 2, 0, absent=absent)


def case(tiered: DecodeResult) -> RowsCase:
    order = DecodeOrder(False, 2, 0, 8, 2, 1)
    return RowsCase("random", order, 1 << 20, 1 << 18, 1 << 19, result(2), tiered, {"ssd_dram": 1 << 20})


def test_a_good_run_over_rows_has_no_complaint() -> None:
    """Same tokens and logits, absent rows met, all requests at once: nothing is missing, and the tables say so."""
    good = case(result(2))
    assert rows_report.verdict([good]) == []
    console = Console(width=100, record=True)
    console.print(*rows_report.tables_of([good]))
    assert "ahead of need" in console.export_text()
    assert msgspec.json.decode(msgspec.json.encode(good.figures()))["tiered"]["absent"] == 3


def test_each_thing_missing_of_a_run_over_rows_is_named() -> None:
    """Another token, another logit, no absent row, requests one by one: each is a complaint of its own."""
    for change, words in (
        ({"tokens": [[0, 7], [1, 8]]}, "request 1: other tokens than all-resident"),
        ({"logits_digests": ["digest 0", "other"]}, "request 1: the same tokens from other logits"),
        ({"absent": 0}, "no row was ever absent"),
        ({"running_most": 1}, "only 1 of 2 requests decoded at once"),
    ):
        (complaint,) = rows_report.verdict([case(msgspec.structs.replace(result(2), **change))])
        assert complaint.startswith(f"random weights: {words}")


def sweep(tiered: dict[int, float]) -> list[Point]:
    """All-resident runs two at once; `tiered` says by count how many busy seconds."""
    dense = {1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0}
    return [
        Point(
            count,
            count >= 2,
            [result(count, slow * dense[count], min(count, 2)) for slow in (3, 1)],
            [result(count, slow * tiered[count]) for slow in (1, 2)],
        )
        for count in dense
    ]


def test_a_sweep_is_good_when_tiered_grows_past_a_full_pool(tmp_path: Path) -> None:
    """Nearly as fast below saturation, faster and faster above: no complaint, and a plot of it."""
    points = sweep({1: 1.05, 2: 1.05, 4: 1.3, 8: 1.6})
    assert sweep_report.verdict(points) == []
    sweep_report.plot(points, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("tiered", "words"),
    [
        ({1: 1.2, 2: 1.0, 4: 1.3, 8: 1.6}, "1 at once: tiered reaches 83% of all-resident"),
        ({1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0}, "tiered does not grow on: 4, 4, 4 tokens/s"),
    ],
)
def test_a_sweep_that_misses_a_bar_says_which(tiered: dict[int, float], words: str) -> None:
    """Slower below saturation, or flat above it, is a complaint with the figures."""
    (complaint,) = sweep_report.verdict(sweep(tiered))
    assert complaint.startswith(words)


def test_a_sweep_compares_bits_across_counts_and_ways() -> None:
    """A request gives the same tokens however many run beside it; one that does not is named."""
    points = sweep({1: 1.0, 2: 1.0, 4: 1.3, 8: 1.6})
    points[1].tiered.logits_digests[0] = "other"
    assert sweep_report.verdict(points) == ["2 at once, tiered: other tokens or logits than with 8 at once"]


def test_pages_that_come_unasked_after_being_away_came_ahead() -> None:
    """What was asked for came on demand; what came without that, ahead; what was there at first or is new, neither."""
    arrivals = Arrivals(chunk_count=2)
    arrivals.attach(5, blocks=3)
    arrivals.changed(PagesChange(5, 1, ((0, 0, 9), (0, 1, 10)), ()), set())
    arrivals.changed(PagesChange(5, 2, ((3, 0, 9), (3, 1, 10)), ((0, 0),)), set())
    assert (arrivals.ahead, arrivals.on_demand, arrivals.revoked) == (0, 0, 1)
    arrivals.changed(PagesChange(5, 3, ((0, 0, 4), (1, 0, 5), (1, 1, 6)), ()), {(1, 0)})
    assert (arrivals.ahead, arrivals.on_demand) == (2, 1)
    arrivals.selected(5, 0, [0, 0, 2])
    arrivals.selected(5, 1, [0])
    assert arrivals.ahead_used == 1


def test_fewer_requests_step_at_once_while_most_fail() -> None:
    """The window halves when most of a batch failed and grows by one when not; failed steps always come first."""
    window = Window(4)
    assert window.choose([1, 2, 3, 4], set()) == [1, 2, 3, 4]
    window.judge([False, False, False, True])
    assert window.choose([1, 2, 3, 4], {3}) == [3, 1]
    window.judge([False, False])
    assert window.choose([1, 2, 3, 4], {3, 4}) == [3, 4]
    window.judge([True, True])
    assert window.choose([1, 2, 3, 4], set()) == [1, 2]
