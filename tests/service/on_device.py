"""A worker's memory on the device of `tests/tiers/host_driver.py`, shared by the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from flexkv_py.client import Client, DeviceAllocation, PagedLayout
from flexkv_py.client.handles import Memory
from tests.tiers.host_driver import UUID, HostDriver

from .conftest import GEOMETRY, PAGE_TOKENS, PAGES_PER_BLOCK, DaemonThread

BLOCKS = 8
TOKENS = list(range(GEOMETRY.tokens_per_block * BLOCKS))
PAGES = list(range(PAGES_PER_BLOCK * BLOCKS))
LAYOUT = PagedLayout(GEOMETRY, 64, PAGE_TOKENS)


def register(
    client: Client, driver: HostDriver, device: str = UUID, spare_bytes: int = 0, first: int = 256
) -> tuple[Memory, memoryview]:
    """Memory with `spare_bytes` behind its pages, from byte `first` of an allocation on; and its content."""
    length = LAYOUT.bytes + spare_bytes
    handle, content = driver.allocate(first + length)
    part = DeviceAllocation(first, length, handle)
    memory = client.register_device_memory(
        device, [part], page_count=LAYOUT.page_count, page_tokens=PAGE_TOKENS, layout=LAYOUT.layers
    )
    return memory, content[first:]


def rows_in(content: memoryview) -> bytes:
    """Of the pages PAGES, all layers and planes."""
    parts = [content[each.offset : each.offset + each.page_bytes * len(PAGES)] for each in LAYOUT.layers]
    return b"".join(parts)


def run(daemon: DaemonThread, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the daemon's loop; its result."""
    loop = daemon.call(asyncio.get_running_loop)
    return asyncio.run_coroutine_threadsafe(work, loop).result(20)
