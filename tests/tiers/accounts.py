"""What an SSD store counts, looked at when nothing is on its way."""

from __future__ import annotations

import asyncio

from flexkv_tiers.ssd import SsdStore

SETTLED_S_MAX = 10.0


async def live_bytes(store: SsdStore) -> object:
    """Bytes of live records once reclaim rests: a record that is being moved counts in both places until then."""
    end = asyncio.get_running_loop().time() + SETTLED_S_MAX
    told = store.status()
    while told["live_bytes"] != told["used_bytes"] and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.01)
        told = store.status()
    return told["live_bytes"]
