"""How many bytes a day may be written into a tier, so that a flash disk lives as long as it should.

A token bucket of one hour's share, kept as a single time (the virtual scheduling algorithm of ITU-T
I.371): each write moves the time at which everything so far is paid for. Who must write may go into
debt, and the rest waits until that is paid too. Counts record bytes; what the tier itself moves again is
the tier's own figure. Asked by placement, drawn from by moves.
"""

from __future__ import annotations

DAY_NS = 86_400_000_000_000
BURST_NS = DAY_NS // 24


class WriteBudget:
    """Bytes per day; 0: no limit."""

    def __init__(self, bytes_per_day: int) -> None:
        self.bytes_per_day = bytes_per_day
        self._paid_ns = 0

    def admits(self, now_ns: int) -> bool:
        """Whether anything is left for writes that nobody insists on."""
        return self._paid_ns - now_ns < BURST_NS

    def spent_bytes(self, now_ns: int) -> int:
        """How far writes are ahead of what is paid for."""
        return max(0, self._paid_ns - now_ns) * self.bytes_per_day // DAY_NS

    def draw(self, byte_count: int, now_ns: int) -> None:
        """A record is written."""
        if self.bytes_per_day:
            self._paid_ns = max(self._paid_ns, now_ns) + byte_count * DAY_NS // self.bytes_per_day
