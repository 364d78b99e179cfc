"""A real browser and a real daemon for all these tests; every page is watched for what should not happen."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Response, expect, sync_playwright

from .world import Traffic, World

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
"""Debian's. Playwright's own build would have to be downloaded."""
expect.set_options(timeout=30_000)  # on a busy machine; what comes at once is not waited for
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
REPLAY_S = 3.0


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with DRAM and SSD that asks for no token."""
    world = World(tmp_path_factory.mktemp("world"))
    world.start()
    yield world
    world.stop()


class Watched:
    """A page, and all that went wrong on it: errors on its console, requests that failed or went elsewhere."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.troubles: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self._note(said.type in ("error", "warning"), f"console: {said.text}"))
        page.on("pageerror", lambda error: self._note(True, f"error: {error}"))
        page.on("requestfailed", lambda request: self._note(*_failure(request)))
        page.on("request", lambda request: self._note(not request.url.startswith(url), f"elsewhere: {request.url}"))
        page.on("response", self._check)

    def _note(self, wrong: bool, what: str) -> None:
        if wrong:
            self.troubles.append(what)

    def _check(self, response: Response) -> None:
        self.requests.append(response.url)
        self._note(response.status >= 400, f"{response.status}: {response.url}")


def _failure(request: Request) -> tuple[bool, str]:
    """A page that is left lets go of what it had asked for; nothing else may fail."""
    return request.failure != "net::ERR_ABORTED", f"failed: {request.url} {request.failure}"


@pytest.fixture
def open_page(browser: Browser, world: World) -> Iterator[Callable[..., Watched]]:
    """Open the dashboard; what a test does not take out of `troubles` itself fails it at its end."""
    opened: list[Watched] = []

    def open_page(url: str = world.url, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(15_000)
        watched = Watched(context.new_page(), url)
        opened.append(watched)
        watched.page.goto(url)
        return watched

    yield open_page
    troubles = [trouble for watched in opened for trouble in watched.troubles]  # before closing ends its requests
    for watched in opened:
        watched.page.context.close()
    assert troubles == []


@pytest.fixture(scope="package")
def served(world: World) -> World:
    """The daemon after some seconds of replay, quiet now."""
    with Traffic(world):
        time.sleep(REPLAY_S)
    return world


@pytest.fixture
def busy(served: World) -> Iterator[World]:
    """The daemon while workers load and save."""
    with Traffic(served, seed=2):
        yield served
