"""How long reads from one tier take, by how many bytes are on their way before them.

No model of the device: up to some depth a read costs the tier's latency, beyond it the link's bandwidth,
and where one turns into the other nobody tells us. So what was measured is kept in classes by powers of
two, each smoothed as TCP smooths round trips (RFC 6298, weight 1/8); beyond the largest class known the
line through the last two goes on. It errs to the early side: a class with few or old samples says nothing,
so that a tier that was slow once is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLES_MIN = 8
SMOOTHING = 8
AGE_NS_MAX = 5_000_000_000
DOUBT = 1.5
"""A read is given up only if it is forecast to take this many times what is left."""


@dataclass(slots=True)
class _Reads:
    """Reads with about as many bytes on their way: smoothed bytes and duration."""

    count: int
    ahead_bytes: float
    took_ns: float
    newest_ns: int


class Forecast:
    """Fed with every load's read that ended well, asked before the next begin."""

    def __init__(self) -> None:
        self._classes: dict[int, _Reads] = {}

    def note(self, ahead_bytes: int, took_ns: int, now_ns: int) -> None:
        """A read took so long; when it began `ahead_bytes` were on their way, its own included."""
        reads = self._classes.get(ahead_bytes.bit_length())
        if reads is None or now_ns - reads.newest_ns > AGE_NS_MAX:
            self._classes[ahead_bytes.bit_length()] = _Reads(1, ahead_bytes, took_ns, now_ns)
            return
        reads.count += 1
        weight = 1 / min(reads.count, SMOOTHING)
        reads.ahead_bytes += weight * (ahead_bytes - reads.ahead_bytes)
        reads.took_ns += weight * (took_ns - reads.took_ns)
        reads.newest_ns = now_ns

    def arrival_ns(self, ahead_bytes: int, now_ns: int) -> int:
        """When a read that begins now would have ended; `now_ns` itself when nothing is known."""
        trusted = [
            self._classes[bits]
            for bits in sorted(self._classes)
            if bits <= ahead_bytes.bit_length()
            and self._classes[bits].count >= SAMPLES_MIN
            and now_ns - self._classes[bits].newest_ns <= AGE_NS_MAX
        ]
        if not trusted:
            return now_ns
        last, slope = trusted[-1], 0.0
        if len(trusted) > 1:
            before = trusted[-2]
            slope = max(0.0, (last.took_ns - before.took_ns) / (last.ahead_bytes - before.ahead_bytes))
        return now_ns + max(0, int(last.took_ns + slope * (ahead_bytes - last.ahead_bytes)))

    def misses(self, deadline_ns: int, ahead_bytes: int, now_ns: int) -> bool:
        """Whether a read that begins now surely ends after the deadline."""
        return self.arrival_ns(ahead_bytes, now_ns) - now_ns > DOUBT * (deadline_ns - now_ns)
