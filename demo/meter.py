"""Bytes moved per link during a phase, from the daemon's own counters.

Owns the differences between two looks at `/metrics`, across a restart of the daemon (counters begin at
zero again). Called by `run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from demo.fleet import Daemon

LINK_BYTES = "flexkv_link_bytes_total"
"""Counter with one label `link`."""

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


class LinkMeter:
    """Adds up what each link moved; `close_life` before a daemon ends, or its bytes are lost."""

    def __init__(self, daemon: Daemon) -> None:
        self.bytes: Counter[str] = Counter()
        self._daemon = daemon
        self._before: Counter[str] = Counter()

    async def open_life(self, *, fresh: bool) -> None:
        """Begin to count; a `fresh` daemon's counters count from zero."""
        self._before = Counter() if fresh else link_bytes(await self._daemon.metrics())

    async def close_life(self) -> None:
        """Add what was moved since `open_life`."""
        self.bytes += link_bytes(await self._daemon.metrics()) - self._before


def link_bytes(samples: Samples) -> Counter[str]:
    """Bytes so far by link."""
    links = ((dict(labels)["link"], value) for (name, labels), value in samples.items() if name == LINK_BYTES)
    return Counter({link: round(value) for link, value in links})
