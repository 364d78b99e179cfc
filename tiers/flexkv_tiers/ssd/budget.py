"""How much may be rewritten: bytes written and rewritten over a sliding window, and the limit on their ratio.

Write amplification is (new + rewritten) / new. Pure counting; `log` asks before a record is rewritten
and tells of every byte that was.
"""

from __future__ import annotations

from collections import deque

PARTS = 16
"""The window moves by this part of itself."""


class RewriteBudget:
    """Keeps (new + rewritten) / new within `amplification_max` over the last `window_bytes` of new bytes.

    Each life begins as if one part of a window had just been written: else a daemon that is restarted often
    could never move anything.
    """

    def __init__(self, amplification_max: float, window_bytes: int) -> None:
        assert amplification_max >= 1.0
        self._share = amplification_max - 1.0
        self._part_bytes = max(1, window_bytes // PARTS)
        self._parts: deque[list[int]] = deque([[self._part_bytes, 0], [0, 0]], maxlen=PARTS)  # [new, rewritten]
        self.new_bytes = self.rewritten_bytes = 0  # over the store's life

    def wrote(self, count: int) -> None:
        self.new_bytes += count
        self._parts[-1][0] += count
        if self._parts[-1][0] >= self._part_bytes:
            self._parts.append([0, 0])

    def rewrote(self, count: int) -> None:
        self.rewritten_bytes += count
        self._parts[-1][1] += count

    @property
    def left_bytes(self) -> int:
        """What may be rewritten now: within the limit over the window, and over the life."""
        new, rewritten = self._window()
        leaving = self._parts[0][0] if len(self._parts) == PARTS else 0  # soon counts no more
        window = int((new - leaving) * self._share) - rewritten
        return max(0, min(window, int((self._part_bytes + self.new_bytes) * self._share) - self.rewritten_bytes))

    @property
    def window_amplification(self) -> float:
        new, rewritten = self._window()
        return (new + rewritten) / new if new else 1.0

    @property
    def life_amplification(self) -> float:
        return (self.new_bytes + self.rewritten_bytes) / self.new_bytes if self.new_bytes else 1.0

    def _window(self) -> tuple[int, int]:
        return sum(new for new, _ in self._parts), sum(rewritten for _, rewritten in self._parts)
