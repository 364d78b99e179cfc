"""What went wrong of late: failed transfers, tiers that went down, coded errors. In memory, and in the log.

Owns both: a bounded ring of recent faults for people who ask the daemon, and which of the failed transfers get a line
in the log, where a full or broken disk is not silent, and does not flood either. Told by `executor`, `store_events`,
`server`, `row_path` and `daemon`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flexkv_py.core.messages import Fault
from flexkv_py.errors import FlexKVError

log = logging.getLogger(__name__)

QUIET_S = 10.0
"""After one of a kind, the next ones of that kind are only counted for so long."""
RECENT_MAX = 256
DETAIL_CHARS_MAX = 300
"""A detail may repeat what a stranger sent."""
_COPY_LINKS = {"dram_worker", "worker_dram"}


@dataclass(slots=True)
class _Faults:
    """Faults of one kind within QUIET_S."""

    number: int
    """Of the newest one."""
    began_s: float
    newest_s: float
    what: str
    tier: str
    detail: str
    """The newest one's."""
    count: int = 1


class FaultLog:
    """See the module's docstring. `clock_s` is the loop's clock, or another that never goes back."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        """Faults since the start: whoever waits for news compares it."""
        self._clock_s = clock_s
        self._recent: deque[_Faults] = deque(maxlen=RECENT_MAX)
        self._newest: dict[tuple[str, str], _Faults] = {}  # by what and tier: as many as there are kinds

    def failed(self, link: str, fault: Fault, detail: str) -> None:
        """A transfer failed: a line in the log per link and fault every `QUIET_S`, with the number of those without."""
        source, _, target = link.partition("_")
        tier = "dram" if link in _COPY_LINKS else next(word for word in (source, target) if word != "dram")
        words = f"{link}: {fault.value}"
        known = self._newest.get((words, tier))
        if self.note(words, tier, detail):
            said = words + (f": {detail}" if detail else "")
            since = known.count - 1 if known else 0
            log.warning("%s", f"{said}; {since} more since the last such line" if since else said)

    def refused(self, error: FlexKVError) -> None:
        """A request was answered with a coded error."""
        self.note(f"request: {error.code.value}", "", error.message)

    def note(self, what: str, tier: str = "", detail: str = "") -> bool:
        """Something went wrong. True when it is the first of its kind for a while; else it is counted with that one."""
        self.total += 1
        now_s, detail = self._clock_s(), detail[:DETAIL_CHARS_MAX]
        known = self._newest.get((what, tier))
        if known is not None and now_s - known.began_s < QUIET_S:
            known.count += 1
            known.newest_s, known.detail, known.number = now_s, detail, self.total
            return False
        fresh = self._newest[what, tier] = _Faults(self.total, now_s, now_s, what, tier, detail)
        self._recent.append(fresh)
        return True

    def recent(self, limit: int = RECENT_MAX) -> list[dict[str, object]]:
        """The newest first: what, in which tier (empty: in none), the newest detail, and how many within QUIET_S."""
        now_s = self._clock_s()
        newest_first = sorted(self._recent, key=lambda each: each.number, reverse=True)
        return [
            {
                "age_s": now_s - each.newest_s,
                "what": each.what,
                "tier": each.tier,
                "detail": each.detail,
                "count": each.count,
            }
            for each in newest_first[:limit]
        ]
