"""The dashboard when something is in its way: a daemon that stops and comes back, a token, a role that may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .conftest import Watched
from .world import Traffic, World

OpenPage = Callable[..., Watched]
COMES_BACK_MS_MAX = 60_000
FAULT_S_MAX = 10.0
LOOK = "look-look-look-look-look"
PAGE_BYTES = 4096
SEGMENT_BYTES_MIN = 1 << 20


def test_it_survives_a_restart_by_itself(served: World, open_page: OpenPage) -> None:
    """A stop is said at once, the last numbers stay and look stale; when the daemon is back, so is the page."""
    watched = open_page()
    page = watched.page
    expect(page.locator("#state")).to_have_text("ready")
    page.evaluate("window.sameLife = true")
    boot = served.get("v1/status").json()["boot"]
    before = page.locator('[data-tier="dram"] [data-of="hits"]').get_attribute("data-value")
    served.stop()
    expect(page.locator("#state")).to_have_text("connection lost")
    expect(page.locator("#banner")).to_contain_text("the daemon does not answer")
    expect(page.locator("#announcement")).to_contain_text("not answering")
    assert page.locator('[data-tier="dram"] [data-of="hits"]').get_attribute("data-value") == before
    served.start()
    expect(page.locator("#state")).to_have_text("ready", timeout=COMES_BACK_MS_MAX)
    expect(page.locator("#banner")).to_be_hidden()
    assert served.get("v1/status").json()["boot"] != boot
    hits = page.locator('[data-tier="dram"] [data-of="hits"]')
    expect(hits).to_have_attribute("data-value", "0")
    assert page.evaluate("window.sameLife")
    refused = [trouble for trouble in watched.troubles if "ERR_CONNECTION_REFUSED" in trouble]
    assert refused, "the browser itself reports each try while nobody listens"
    watched.troubles = [
        trouble for trouble in watched.troubles if trouble not in refused and "ERR_INCOMPLETE_CHUNKED" not in trouble
    ]


def test_a_damaged_block_is_named(world: World, open_page: OpenPage) -> None:
    """Bytes changed on the SSD are a fault in a block's story: the block stands on the page, with what it met."""
    with Traffic(world, seed=3):
        time.sleep(1)
        damage(world.folder / "ssd")
        end = time.monotonic() + FAULT_S_MAX
        while not world.get("v1/notable").json()["faulted"] and time.monotonic() < end:
            time.sleep(0.1)
    told = world.get("v1/notable").json()["faulted"]
    page = open_page().page
    expect(page.locator("#faulted tbody tr").first).to_be_visible()
    button = page.locator("#faulted button").first
    assert button.get_attribute("title") == told[0]["key"]
    button.click()
    expect(page.locator("#story-events")).to_contain_text("fault")


def damage(directory: Path) -> None:
    """Change a byte of every page of every segment."""
    for path in directory.glob("**/*"):
        if path.is_file() and path.stat().st_size > SEGMENT_BYTES_MIN:
            with path.open("r+b") as file:
                for at in range(PAGE_BYTES // 2, path.stat().st_size, PAGE_BYTES):
                    file.seek(at)
                    file.write(b"\xa5")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon that asks for a token: LOOK may read, another everything."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"read {LOOK}\nadmin rule-rule-rule-rule-rule\n")
    tokens.chmod(0o600)
    world = World(folder, f'token_file = "{tokens}"\n')
    world.start()
    yield world
    world.stop()


def test_a_token_is_asked_for_and_kept_for_this_tab_only(guarded: World, open_page: OpenPage) -> None:
    """Without one the page asks; a wrong one is refused and asked for again; the right one is in no other storage."""
    watched = open_page(guarded.url)
    page = watched.page
    expect(page.locator("#token")).to_be_visible()
    expect(page.locator("#token-why")).to_have_text("This daemon asks for a token.")
    page.locator("#token-value").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-why")).to_contain_text("refused")
    expect(page.locator("#token")).to_be_visible()
    assert all("401" in trouble for trouble in watched.troubles)
    watched.troubles.clear()
    page.locator("#token-value").fill(LOOK)
    page.keyboard.press("Enter")
    expect(page.locator("#token")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator('[data-tier="dram"] [data-of="capacity_bytes"]')).to_have_attribute("data-value", str(8 << 20))
    page.reload()
    expect(page.locator("#state")).to_have_text("ready")
    assert LOOK not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location")
    page.locator("#forget-token").click()
    expect(page.locator("#token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    watched.troubles = [trouble for trouble in watched.troubles if "401" not in trouble]


def test_who_may_only_read_is_told_so(guarded: World, open_page: OpenPage) -> None:
    """A job is cancelled by an admin's token; with one that may only read, the page says what was refused."""
    watched = open_page(guarded.url)
    page = watched.page
    # Shown as if it ran: no real job of this small daemon lasts until it is clicked. The refusal is the daemon's own.
    job = {"id": 7, "kind": "verify", "state": "running", "done": 1, "total": 4, "unit": "blocks", "age_s": 1}
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [job]}))
    page.locator("#token-value").fill(LOOK)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel job verify 7").click()
    expect(page.locator("#jobs .note.bad")).to_contain_text("Job 7 was not cancelled: this token may read only")
    watched.troubles = [each for each in watched.troubles if "403" not in each and "401" not in each]
