"""What a scrape costs (`scripts/trials scrape` asks with a thousand tenants)."""

from pathlib import Path

from .scrape import scrape


def test_a_scrape_beside_a_busy_worker_is_cheap_and_bounded(tmp_path: Path) -> None:
    """More tenants than have names of their own: the series are bounded, a scrape takes little CPU."""
    figures = scrape(tmp_path, tenants=60, scrapes=20)
    assert figures["of tenants"] > 0
