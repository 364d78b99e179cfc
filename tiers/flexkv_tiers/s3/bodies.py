"""Bodies of uploads: parts in memory, sent from where they lie.

Pure; no byte is copied here. Called by `objects`, in the byte worker.
"""

from __future__ import annotations

from collections.abc import Sequence


class Body:
    """The bytes of an upload where they lie; file-like enough for botocore to sign them."""

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts = parts
        self._next = 0

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def rewind(self) -> None:
        self._next = 0

    def read(self, _size: int = -1) -> memoryview | bytes:
        """The next part, whatever size is asked for."""
        if self._next == len(self.parts):
            return b""
        self._next += 1
        return self.parts[self._next - 1]

    def tell(self) -> int:
        return sum(len(part) for part in self.parts[: self._next])

    def seek(self, position: int) -> None:
        assert position == 0, "botocore only ever rewinds, after signing"
        self._next = 0


def cut_out(parts: Sequence[memoryview], start: int, end: int) -> list[memoryview]:
    """The bytes from `start` to `end` of these parts put together."""
    cut, at = [], 0
    for part in parts:
        low, high = max(start - at, 0), min(end - at, len(part))
        if low < high:
            cut.append(part[low:high])
        at += len(part)
    return cut
