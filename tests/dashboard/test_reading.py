"""Whoever reads the dashboard, and on whatever: keyboard, screen reader, phone, light and dark, without motion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from .conftest import DESKTOP, PHONE, Watched
from .world import World

OpenPage = Callable[..., Watched]
NARROWEST = 320
RULES: dict[str, object] = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
CONTRAST: dict[str, object] = {"type": "rule", "values": ["color-contrast"]}
CONTRAST_ONLY = {("desktop", "dark"), ("phone", "light")}
"""The same elements and colours as in the other two; only their combination is new."""


def assert_accessible(page: Page, rules: dict[str, object]) -> None:
    """As far as a program can tell."""
    found = Axe().run(page, options={"runOnly": rules})
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_it_can_be_read_by_everyone(busy: World, open_page: OpenPage, tmp_path: Path, device: str, scheme: str) -> None:
    """In both sizes and schemes axe finds nothing against WCAG 2.2 AA, nothing scrolls sideways, and it is drawn."""
    viewport = DESKTOP if device == "desktop" else PHONE
    page = open_page(viewport=viewport, color_scheme=scheme, has_touch=device == "phone").page
    expect(page.locator("#hottest tbody tr").first).to_be_visible()
    expect(page.locator("#policy tbody tr").first).to_be_visible()
    assert_accessible(page, CONTRAST if (device, scheme) in CONTRAST_ONLY else RULES)
    for width in (viewport["width"], NARROWEST):
        page.set_viewport_size({"width": width, "height": viewport["height"]})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size(viewport)
    picture = tmp_path / f"dashboard-{device}-{scheme}.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 20_000
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) / 3
    assert (brightness > 128) == (scheme == "light")


def test_a_story_is_told_by_keyboard_alone(served: World, open_page: OpenPage) -> None:
    """Tab reaches the skip link first; a block's story opens with Enter, closes with Escape, and focus comes back."""
    page = open_page().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    button = page.locator("#hottest button").first
    key = button.get_attribute("title")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#story-key")).to_have_text(str(key))
    told = served.get(f"v1/blocks/{key}/story").json()
    expect(page.locator("#story-explanation")).to_have_text(told["explanation"])
    expect(page.locator("#story-events > li")).to_have_count(len(told["events"]))
    assert_accessible(page, RULES)
    page.keyboard.press("Escape")
    expect(page.locator("#story")).to_be_hidden()
    assert page.evaluate("document.activeElement.title") == key
    page.locator("#find-key").fill("not a key")
    page.keyboard.press("Enter")
    expect(page.locator("#story")).to_be_hidden()
    page.locator("#find-key").fill(f" {str(key).upper()} ")
    page.keyboard.press("Enter")
    expect(page.locator("#story-key")).to_have_text(str(key))


def test_the_theme_can_be_chosen_and_is_kept(served: World, open_page: OpenPage) -> None:
    """A reader whose system is light chooses dark: it is dark at once, and still after a reload."""
    page = open_page(color_scheme="light").page
    dark = "() => getComputedStyle(document.body).backgroundColor === 'rgb(16, 18, 22)'"
    assert not page.evaluate(dark)
    page.locator("#theme").select_option("dark")
    assert page.evaluate(dark)
    page.reload()
    assert page.evaluate(dark)
    assert page.locator("#theme").input_value() == "dark"


def test_nothing_moves_for_those_who_asked_for_calm(busy: World, open_page: OpenPage) -> None:
    """With reduced motion no animation runs while blocks flow; without it one does."""
    running = "() => document.getAnimations().filter((each) => each.playState === 'running').length"
    flows = """() => document.querySelector('[data-link="dram_worker"]').parentElement.dataset.flows === 'true'"""
    moving = open_page().page
    moving.wait_for_function(flows)
    moving.wait_for_function(f"() => ({running})() > 0")
    calm = open_page(reduced_motion="reduce").page
    calm.wait_for_function(flows)
    assert calm.evaluate(running) == 0
