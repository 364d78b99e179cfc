"""Why a block is where it is: one bounded ring of what happened, for all blocks together."""

from __future__ import annotations

from collections import deque

from flexkv_py.core.messages import StoryEvent, Tier
from flexkv_py.keys import BlockKey


class Story:
    """The newest `events_max` events. Appending is O(1); reading one block's story scans the ring."""

    def __init__(self, events_max: int) -> None:
        self.ring: deque[tuple[int, BlockKey, str, Tier, str]] = deque(maxlen=events_max)

    def of(self, key: BlockKey) -> list[StoryEvent]:
        """Events of one block, oldest first."""
        return [StoryEvent(*event) for event in self.ring if event[1] == key]
