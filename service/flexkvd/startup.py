"""What goes on behind the open socket at start: arena, recovery, listing.

Owns the order and the retries of a tier that cannot be reached yet; reports to the planner by events and
to people by `Readiness`. Started by `daemon`, which ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from flexkv_py.core.messages import RecoveryFinished, Tier, TierChanged
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierStore
from flexkv_tiers.memory import Arena
from flexkvd.engine import Engine
from flexkvd.readiness import Readiness
from flexkvd.store_events import found_event

log = logging.getLogger(__name__)

FATAL_CODES = frozenset({ErrorCode.S3_BUCKET_MISSING, ErrorCode.S3_DENIED, ErrorCode.BAD_CONFIG})
"""Somebody has to change something: better said at once, while somebody looks, than in `degraded`."""
REACH_S_MAX = 5.0
"""How long a start waits for a tier that neither answers nor refuses; then the daemon is ready without it."""
GC_THRESHOLDS = (50_000, 50, 1_000)
"""Young collections are cheap; a full one over a million blocks stalls 0.3 s, and while they are found there would be
one for every quarter more of them: make it rare."""
LARGE_BYTES = 256 << 10
"""Memory of at least this size goes back to the system when it is freed."""
_M_MMAP_THRESHOLD = -3  # malloc.h


async def populate(arena: Arena, readiness: Readiness, populated: Callable[[], None]) -> None:
    """Touch every page of the arena in a thread of its own; `populated` is called on the loop after each segment."""
    readiness.begin("arena", lambda: f"{arena.populated_bytes} of {arena.room_bytes} bytes populated")
    stop = threading.Event()
    loop = asyncio.get_running_loop()

    def tell() -> None:
        loop.call_soon_threadsafe(populated)

    running = loop.run_in_executor(None, arena.populate, stop, tell)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await running
        raise
    except FlexKVError as error:
        log.error("the arena is not populated: %s", error)
        raise
    readiness.end("arena")


async def recover(tier: Tier, store: TierStore, engine: Engine, readiness: Readiness) -> None:
    """Tell the planner of every block a started tier still has."""
    gc.set_threshold(*GC_THRESHOLDS)
    _return_large_memory()
    name, count = tier.name.lower(), 0
    progress = lambda: f"{count} blocks found so far"  # noqa: E731 - one for either case
    if name in readiness.steps:  # reached, or on its way to be
        readiness.steps[name].progress = progress
    else:
        readiness.begin(name, progress)
    if tier is Tier.SSD:  # local, so soon over; S3 may keep us waiting for hours
        gc.disable()  # all of it stays: each collection would only look through it again
    try:
        async for batch in store.found():
            count += len(batch.blocks)
            engine.post(found_event(tier, batch, engine.now_ns()))
    finally:
        gc.enable()
    engine.post(RecoveryFinished(tier, engine.now_ns()))
    log.info("%s: %d blocks of the last life found", name, count)
    readiness.end(name)


async def reach(tier: Tier, store: TierStore, engine: Engine, readiness: Readiness) -> None:
    """Start a tier that may be unreachable for a while, then read it in. Raises what waiting cannot cure.

    An unreachable store keeps trying by itself and says through its listener when it is back;
    its `found` waits until then. The daemon is ready without it meanwhile, and from then on nothing the
    store says ends it: whoever is served already keeps what the other tiers have.
    """
    name, went_on = tier.name.lower(), False

    def go_on() -> None:
        nonlocal went_on
        went_on = True
        engine.post(TierChanged(tier, False, "connecting: it has not answered yet", engine.now_ns()))
        readiness.go_on_without(name)

    readiness.begin(name, lambda: "connecting")
    patience = asyncio.get_running_loop().call_later(REACH_S_MAX, go_on)
    try:
        await store.start()
        if went_on:
            engine.post(TierChanged(tier, True, "it has answered", engine.now_ns()))
    except FlexKVError as error:
        if error.code in FATAL_CODES and not went_on:
            raise
        log.warning("%s is down, the other tiers serve: %s", name, error)
        readiness.go_on_without(name)
    finally:
        patience.cancel()
    await recover(tier, store, engine, readiness)


def _return_large_memory() -> None:
    """Left to itself, glibc keeps what it has seen freed once: 50 bytes for each block that a start has read in.

    Other C libraries have no such call, and no such habit.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def settle_heap() -> None:
    """Take what recovery built out of the garbage collector's sight: it lives as long as the daemon.

    No collection first: it would look at every block while the first clients wait.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
