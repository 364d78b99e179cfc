"""Takes the pictures of the documentation: `python -m tests.dashboard.pictures docs/images`.

A daemon with all tiers, the S3 server included, serves a replay while the pictures are taken.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from flexkvd.cli.s3server import S3Server

from .conftest import CHROMIUM, DESKTOP, PHONE
from .world import Traffic, World

BUCKET = "flexkv"
REPLAY_S = 75.0
SSD_BYTES = 32 << 20
CONVERSATIONS = 96
"""More than DRAM and SSD hold, so that S3 serves hits too."""
DEVICES = {"desktop": {**DESKTOP, "height": 1180}, "phone": {**PHONE, "height": 1700}}
COLOURS = 256
PICTURE_BYTES_MAX = 200_000


def main(folder: Path) -> None:
    """Write `dashboard-{desktop,phone}-{light,dark}.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(S3Server(temporary / "s3", buckets=(BUCKET,)))
        tables = f'[s3]\nendpoint_url = "{server.endpoint_url}"\nbucket = "{BUCKET}"\nsign_payload = "never"\n'
        world = World(temporary, tables, SSD_BYTES, dict(server.environment))
        world.start()
        stack.callback(world.stop)
        stack.enter_context(Traffic(world, conversations=CONVERSATIONS))
        time.sleep(REPLAY_S)
        world.post("v1/flush", {"to_tier": "s3", "deadline_s": 30})
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        for device in DEVICES:
            for scheme in ("light", "dark"):
                take(browser, world, folder / f"dashboard-{device}-{scheme}.png", device, scheme)


def take(browser: Browser, world: World, picture: Path, device: str, scheme: str) -> None:
    """One picture of the upper part of the page, small enough to be kept."""
    context = browser.new_context(viewport=DEVICES[device], color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(world.url)
    page.locator("#hottest tbody tr").first.wait_for()
    page.locator('#latencies tr[data-key="load"]').wait_for()
    page.locator("#jobs tbody tr").first.wait_for()
    page.wait_for_timeout(4000)
    page.screenshot(path=picture)
    context.close()
    with Image.open(picture) as image:  # a page has few colours: a palette of them takes a third of the bytes
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size} bytes")
    if picture.stat().st_size > PICTURE_BYTES_MAX:
        raise SystemExit(f"{picture} is larger than {PICTURE_BYTES_MAX} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
