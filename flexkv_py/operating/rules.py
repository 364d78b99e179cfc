"""Rules that change while the planner runs: gates, watermarks, and orders, into which copies move in slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexkv_py.core.blocks import Copy, CopyList
from flexkv_py.core.budget import WriteBudget
from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES, Policy
from flexkv_py.core.state import Level, State
from flexkv_py.operating.messages import Rules, RulesChanged

MOVED_PER_EVENT_MAX = 256
PLAIN_RULES = ("policy", "ssd_hits_min", "s3_hits_min", "dram_clean_ahead", "ssd_clean_ahead", "ssd_bytes_per_day",
               "retry_after_ns")  # fmt: skip
"""Of the planner's configuration, by the same names."""


class Moving(Policy):
    """Two orders as one, while copies move from the old into the new, the coldest first.

    What is used meanwhile stands in the old one until its turn comes, as the warmest there: so no copy overtakes
    another. Victims are taken from the new one first, which has the coldest.
    """

    def __init__(self, old: Policy, new: Policy) -> None:
        self.old, self.new = old, new

    @property
    def lists(self) -> Sequence[CopyList]:
        return *self.new.lists, *self.old.lists

    @property
    def count(self) -> int:
        return self.new.count + self.old.count

    def add(self, copy: Copy) -> None:
        self.old.add(copy)

    def cool(self, copy: Copy) -> None:
        self.new.cool(copy)

    def coldest(self) -> Copy | None:
        return self.new.coldest() or self.old.coldest()

    def move(self) -> bool:
        """Move a bounded number of copies; False when none is left to move."""
        for _ in range(MOVED_PER_EVENT_MAX):
            copy = self.old.coldest()
            if copy is None:
                assert self.old.count == 0
                return False
            assert copy.queue is not None
            copy.queue.remove(copy)
            copy.mark = 0  # the old policy's own
            (self.new.add if copy.block.linked else self.new.cool)(copy)
        return True


class Changes:
    """Which rules are in force, and orders on their way to what is wanted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._orders = dict.fromkeys(state.levels, state.config.policy)

    @property
    def moving(self) -> bool:
        """Whether any copy still stands in an order that is to be none any more."""
        return any(isinstance(level.policy, Moving) for level in self._state.levels.values())

    def on_rules(self, event: RulesChanged) -> None:
        """Take over what is told; the values were checked at the edge."""
        state, rules = self._state, event.rules
        told = {name: value for name in PLAIN_RULES if (value := getattr(rules, name)) is not None}
        state.config = replace(state.config, **told)
        for tier, hits_min in ((Tier.SSD, rules.ssd_hits_min), (Tier.S3, rules.s3_hits_min)):
            if hits_min is not None and tier in state.levels:
                state.levels[tier].hits_min = hits_min
        if rules.ssd_bytes_per_day is not None and Tier.SSD in state.levels:
            state.levels[Tier.SSD].budget = WriteBudget(rules.ssd_bytes_per_day)

    def move(self) -> None:
        """Bring every tier a bounded step nearer to the order that is wanted."""
        for level in self._state.levels.values():
            if isinstance(level.policy, Moving):
                self._move(level, level.policy)
            elif self._orders[level.tier] != self._state.config.policy:
                self._orders[level.tier] = self._state.config.policy
                level.policy = Moving(level.policy, POLICIES[self._state.config.policy]())
                self._state.more = True

    def _move(self, level: Level, moving: Moving) -> None:
        if not moving.move():
            level.policy = moving.new
        self._state.more = True  # another change may have come meanwhile


__all__ = ["Changes", "Moving", "Rules"]
