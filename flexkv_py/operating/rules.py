"""Rules that change while the planner runs: gates, watermarks, and orders, into which copies move in slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexkv_py.core.blocks import Copy, CopyList
from flexkv_py.core.budget import WriteBudget
from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES, Policy
from flexkv_py.core.state import State
from flexkv_py.operating.messages import RulesChanged
from flexkv_py.operating.row_change import RowChange
from flexkv_py.tenants.shelf import Shelf

MOVED_PER_EVENT_MAX = 256
PLAIN_RULES = (
    "policy",
    "ssd_hits_min",
    "s3_hits_min",
    "dram_clean_ahead",
    "ssd_clean_ahead",
    "ssd_bytes_per_day",
    "retry_after_ns",
)
"""Of the planner's configuration, by the same names."""


class Moving(Policy):
    """Two orders as one, while copies move from the old into the new, the coldest first.

    What is used meanwhile stands in the old one until its turn comes, as the warmest there: so no copy overtakes
    another. Victims are taken from the new one first, which has the coldest.
    """

    def __init__(self, old: Policy, new: Policy) -> None:
        self.old, self.new, self.cold = old, new, new.cold

    @property
    def lists(self) -> Sequence[CopyList]:
        return *self.new.lists, *self.old.lists

    @property
    def count(self) -> int:
        return self.new.count + self.old.count

    def add(self, copy: Copy) -> None:
        self.old.add(copy)

    def coldest(self) -> Copy | None:
        return self.new.coldest() or self.old.coldest()

    def move(self, copies_max: int) -> int:
        """Move so many copies at most; returns how many were left to move, up to that."""
        for moved in range(copies_max):
            copy = self.old.coldest()
            if copy is None:
                assert self.old.count == 0
                return moved
            order = copy.queue
            assert order is not None
            order.remove(copy)
            copy.mark = 0  # the old policy's own
            if order is self.old.cold:
                self.new.cold.push_newest(copy)
            else:
                self.new.add(copy)
        return copies_max


class Changes:
    """Which rules are in force, and orders on their way to what is wanted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.held = False  # somebody walks the orders: none is replaced meanwhile
        self._left: list[Shelf] = []  # their copies may stand in another order than is wanted
        self._row_change: RowChange | None = None

    @property
    def moving(self) -> bool:
        """Whether copies may still stand in an order that is to be none any more."""
        return bool(self._left)

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
        if rules.policy is not None:
            self._left = [shelf for level in state.levels.values() for shelf in level.shelves]
        if rules.row_policy is not None:
            self._row_change = RowChange(state, rules.row_policy)

    def move(self) -> None:
        """Bring orders a bounded step nearer to what is wanted."""
        if self._row_change is not None:
            self._state.more = True
            if not self._row_change.slice():
                self._row_change = None
        if self.held or not self._left:
            return
        self._state.more = True
        left, wanted = MOVED_PER_EVENT_MAX, POLICIES[self._state.config.policy]
        while self._left and left > 0:
            shelf, left = self._left[-1], left - 1
            if isinstance(shelf.policy, Moving):
                left -= shelf.policy.move(left)
                if not shelf.policy.old.count:
                    shelf.policy = shelf.policy.new
            elif type(shelf.policy) is wanted:
                self._left.pop()
            else:
                tenants = len(self._state.dram.shelves)
                shelf.policy = Moving(shelf.policy, wanted(tenants))
