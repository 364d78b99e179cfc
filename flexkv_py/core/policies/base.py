"""What an eviction policy promises.

A policy only orders copies. The planner owns counts, pins and rooms, and takes a copy out of the
order while anything reads it, so whatever stands in the order may be evicted as far as readers go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flexkv_py.core.blocks import Copy, CopyList

USES_OF_AGAIN_MIN = 2
NEW_MIN = 1
"""What was written last into a tier is never its next victim while there is another: two blocks that need the same room
would push each other out for ever."""


class Policy(ABC):
    """The order of one tier's READY, unpinned copies. Every operation is O(1), or amortised O(1).

    Blocks used once and blocks used again, each list by last use; and before both what was cooled. A copy that is
    pinned or gone was simply taken out of the list it stood in. `copy.mark` is the policy's own, 0 before its `add`.
    """

    def __init__(self, tenants: int = 1) -> None:  # noqa: ARG002 - for those that take memory in each tenant's order
        self.cold = CopyList()
        self.once = CopyList()
        self.again = CopyList()

    @property
    def lists(self) -> Sequence[CopyList]:
        """Where they stand."""
        return self.cold, self.once, self.again

    @property
    def count(self) -> int:
        """Copies in the order."""
        return self.cold.count + self.once.count + self.again.count

    def add(self, copy: Copy) -> None:
        """A copy became READY, was used, or its last reader left: several times for one use.

        `block.uses` counts uses, those of earlier lives as far as the history reaches.
        """
        (self.again if copy.block.uses >= USES_OF_AGAIN_MIN else self.once).push_newest(copy)

    def cool(self, copy: Copy) -> None:
        """A copy that nobody asked for, or an orphan: the first victim."""
        self.cold.push_oldest(copy)

    @abstractmethod
    def coldest(self) -> Copy | None:
        """The next victim; it stays in the order until removed."""
