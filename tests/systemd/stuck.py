"""`flexkvd` itself, whose event loop stands still for good on SIGUSR1. The product has no such signal."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from flexkvd import daemon
from flexkvd.config import Config
from flexkvd.main import main
from flexkvd.parts import Parts

make_parts = daemon.make_parts


async def make_parts_that_stick(config: Config, stack: AsyncExitStack, **options: Any) -> Parts:
    """The daemon's parts, with a signal handler beside them."""
    parts = await make_parts(config, stack, **options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stand_still)
    return parts


def stand_still() -> None:
    while True:
        time.sleep(1)


if __name__ == "__main__":
    daemon.make_parts = make_parts_that_stick
    sys.exit(main())
