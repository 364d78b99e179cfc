"""Rules that change while the planner runs: gates, watermarks, and orders, into which copies move in slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from flexkv_py.core.blocks import Copy, CopyList
from flexkv_py.core.budget import WriteBudget
from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES, Policy
from flexkv_py.core.state import State
from flexkv_py.operating.messages import Rules, RulesChanged
from flexkv_py.rows.grants import chunks_in
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.policy import Place
from flexkv_py.rows.succession import Succession
from flexkv_py.tenants.shelf import Shelf

MOVED_PER_EVENT_MAX = 256
TOLD_PER_EVENT_MAX = 256  # blocks of running requests, when the row policy changes
PLAIN_RULES = tuple(each.name for each in fields(Rules) if each.name != "row_policy")
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


class RowChange:
    """Another row policy on its way: it learns in slices what is granted, and decides when it knows all."""

    def __init__(self, state: State, name: str) -> None:
        self._state, table = state, state.rows
        old = table.policy.old if isinstance(table.policy, Succession) else table.policy
        self._succession = table.policy = Succession(old, ROW_POLICIES[name](), state.now_ns)
        table.limits = replace(table.limits, policy=name)
        self._left = [(request, 0) for request in table.by_id.values()]

    def slice(self) -> bool:
        """Tell the new policy of a bounded number more; False when it knows all, and has taken over."""
        for _ in range(TOLD_PER_EVENT_MAX):
            if not self._left:
                self._state.rows.policy = self._succession.new
                return False
            request, position = self._left.pop()
            if request.live and position < len(request.granted):
                self._left.append((request, position + 1))
                for chunk in chunks_in(request.granted[position]):
                    self._succession.tell(Place(request.id, position, chunk), self._state.now_ns)
        return True


class Changes:
    """Which rules are in force, and orders on their way to what is wanted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.held = False  # somebody walks the orders: none is replaced meanwhile
        self.moving: list[Shelf] = []  # their copies may stand in another order than is wanted
        self._row_change: RowChange | None = None

    def on_rules(self, event: RulesChanged) -> None:
        """Take over what is told; the values were checked at the edge."""
        state, rules = self._state, event.rules
        told = {name: value for name in PLAIN_RULES if (value := getattr(rules, name)) is not None}
        state.config = replace(state.config, **told)
        for level in state.below:
            level.hits_min = state.config.ssd_hits_min if level.tier is Tier.SSD else state.config.s3_hits_min
            if level.tier is Tier.SSD and rules.ssd_bytes_per_day is not None:
                level.budget = WriteBudget(rules.ssd_bytes_per_day)
        if rules.policy is not None:
            self.moving = [shelf for level in state.levels.values() for shelf in level.shelves]
        if rules.row_policy is not None:
            self._row_change = RowChange(state, rules.row_policy)

    def move(self) -> None:
        """Bring orders a bounded step nearer to what is wanted."""
        if self._row_change is not None:
            self._state.more = True
            if not self._row_change.slice():
                self._row_change = None
        if self.held or not self.moving:
            return
        self._state.more = True
        left, wanted = MOVED_PER_EVENT_MAX, POLICIES[self._state.config.policy]
        while self.moving and left > 0:
            shelf, left = self.moving[-1], left - 1
            if isinstance(shelf.policy, Moving):
                left -= shelf.policy.move(left)
                if not shelf.policy.old.count:
                    shelf.policy = shelf.policy.new
            elif type(shelf.policy) is wanted:
                self.moving.pop()
            else:
                tenants = len(self._state.dram.shelves)
                shelf.policy = Moving(shelf.policy, wanted(tenants))
