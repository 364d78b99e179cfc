"""`flexkvd` itself, which also recounts its state on SIGUSR1 and logs what it found; on SIGRTMIN its loop stands still.

The recount is the tests' own (`tests.invariants`); the product neither has nor needs these signals.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from flexkv_py.core.planner import Planner
from flexkvd import daemon
from flexkvd.config import Config
from flexkvd.main import main
from flexkvd.parts import Parts
from tests import invariants

AGREE, BROKEN = "recounted: the invariants agree", "recounted: the invariants are broken"

log = logging.getLogger(__name__)
make_parts = daemon.make_parts


async def make_recounting_parts(config: Config, stack: AsyncExitStack, **options: Any) -> Parts:
    """The daemon's parts, with signal handlers beside them."""
    parts = await make_parts(config, stack, **options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, recount, parts.planner)
    asyncio.get_running_loop().add_signal_handler(signal.SIGRTMIN, stand_still)
    return parts


def recount(planner: Planner) -> None:
    """Count everything anew and log whether the planner's own counts agree."""
    try:
        invariants.check(planner)
    except AssertionError:
        log.exception(BROKEN)
    else:
        log.info(AGREE)


def stand_still() -> None:
    """For good: only a signal that Python does not handle ends it."""
    while True:
        time.sleep(1)


if __name__ == "__main__":
    daemon.make_parts = make_recounting_parts
    sys.exit(main())
