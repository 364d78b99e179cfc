"""The dashboard in real Chromium beside workers that save and load: its numbers, and how they move."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from .conftest import Watched
from .world import World

OpenPage = Callable[..., Watched]
AGREE_S_MAX = 15.0
TIERS_SHOWN = ("dram", "ssd")
TIER_FACTS = (
    "used_bytes",
    "capacity_bytes",
    "blocks",
    "evictable_blocks",
    "writes_in_flight",
    "hits",
    "promotions",
    "demotions",
    "evictions",
    "faults",
)


def shown_tiers(page: Page) -> dict[str, dict[str, float]]:
    """The numbers behind the texts on the cards of the tiers."""
    cards: dict[str, dict[str, float]] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("#pipeline [data-tier]")].map((card) => [
            card.dataset.tier,
            Object.fromEntries([...card.querySelectorAll("[data-of]")].map((each) =>
                [each.dataset.of, Number(each.dataset.value)])),
        ]))"""
    )
    return {tier: cards[tier] for tier in TIERS_SHOWN}


def told_tiers(world: World) -> dict[str, dict[str, float]]:
    tiers = {tier["tier"]: tier for tier in world.get("v1/tiers").json()["tiers"]}
    return {tier: {name: tiers[tier][name] for name in TIER_FACTS} for tier in TIERS_SHOWN}


def until_equal(shown: Callable[[], Any], told: Callable[[], Any]) -> None:
    """The page asks every few seconds, so it may take one turn more."""
    end = time.monotonic() + AGREE_S_MAX
    while (seen := shown()) != (said := told()) and time.monotonic() < end:
        time.sleep(0.2)
    assert seen == said


def test_numbers_are_those_of_the_api(served: World, open_page: OpenPage) -> None:
    """Every number on the cards of DRAM and SSD, the hottest blocks and the tickets is what the API answers."""
    page = open_page().page
    until_equal(lambda: shown_tiers(page), lambda: told_tiers(served))
    assert shown_tiers(page)["dram"]["hits"] > 0
    assert shown_tiers(page)["ssd"]["hits"] > 0
    hottest = served.get("v1/notable").json()["hottest"]
    rows = page.locator("#hottest tbody tr")
    expect(rows).to_have_count(len(hottest))
    keys = [row.get_attribute("data-key") for row in rows.all()]
    assert keys == [f"{each['namespace']}/{each['shard']}/{each['key']}" for each in hottest]
    assert len(keys) == 10
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#sessions-count")).to_have_attribute("data-value", "0")
    metrics = served.get("metrics").text.splitlines()
    counts = [line for line in metrics if line.startswith('flexkv_ticket_seconds_count{kind="load"')]
    ended = sum(float(line.split()[-1]) for line in counts)
    cell = page.locator('#latencies tr[data-key="load"] td').last
    expect(cell).to_have_attribute("data-value", str(int(ended)))


def test_what_flows_is_what_the_samples_say(busy: World, open_page: OpenPage) -> None:
    """The rate on a lane is the difference of two samples some three seconds apart, written as the page writes it."""
    page = open_page().page
    lane = page.locator('[data-link="dram_worker"]')
    page.wait_for_function("""() => Number(document.querySelector('[data-link="dram_worker"]').dataset.value) > 0""")
    seen, text = page.evaluate(
        """() => { const lane = document.querySelector('[data-link="dram_worker"]');
                   return [Number(lane.dataset.value), lane.textContent]; }"""
    )
    samples = busy.get("v1/samples?last_s=60").json()["samples"]
    moved = [(sample["t"], sample["links"]["dram_worker"]["bytes"]) for sample in samples]
    rates = [(after - before) / (to - at) for at, before in moved for to, after in moved if 0 < to - at < 5]
    assert any(abs(seen - rate) <= 1 for rate in rates), (seen, rates)
    written = page.evaluate("async (rate) => (await import('/dashboard/format.js')).bytesPerSecond(rate)", seen)
    assert text == written
    expect(lane).to_be_visible()
    expect(page.locator("#sessions tbody tr")).to_have_count(2)


def test_a_job_is_seen_to_its_end(served: World, open_page: OpenPage) -> None:
    """A flush asked for elsewhere stands in the table, done, with what came of it, and is said to those who listen."""
    page = open_page().page
    expect(page.locator("#state")).to_have_text("ready")
    job = served.post("v1/flush", {"to_tier": "ssd", "deadline_s": 10}).json()
    row = page.locator(f'#jobs tr[data-key="{job["id"]}"]')
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("stored")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(page.locator("#announcement")).to_contain_text(f"flush {job['id']}: done")


def test_the_past_is_drawn_at_once(served: World, open_page: OpenPage) -> None:
    """A page opened after the replay knows its history: the flow of then is in the curves and in their table."""
    page = open_page().page
    flow = page.locator("#charts figure").nth(1)
    flow.locator("summary").click()
    table = """() => [...document.querySelectorAll('#charts figure:nth-child(2) tbody td')]
                     .some((cell) => /MiB\\/s/.test(cell.textContent))"""
    page.wait_for_function(table)
    assert flow.locator("thead th").all_text_contents()[:3] == ["Ago", "loads", "saves"]
    label = flow.get_by_role("img").get_attribute("aria-label") or ""
    assert label.startswith("Flow: now loads ")
