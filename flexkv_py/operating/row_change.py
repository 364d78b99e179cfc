"""Another row policy for requests that run: it learns in slices what is granted, and decides when it knows all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flexkv_py.core.state import State
from flexkv_py.rows.grants import chunks_in
from flexkv_py.rows.messages import AbsentEntry, HeatEntry, MissEntry
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.policy import Hunch, Place, RequestId, RowPolicy

TOLD_PER_EVENT_MAX = 256
"""Blocks of running requests."""


class TwoPolicies:
    """The old policy decides; both hear what is granted and what is not any more."""

    def __init__(self, state: State, old: RowPolicy, new: RowPolicy) -> None:
        self._state, self.old, self.new = state, old, new

    def granted(self, place: Place, now_ns: int) -> None:
        self.old.granted(place, now_ns)
        self.new.granted(place, now_ns)

    def revoked(self, place: Place) -> None:
        self.old.revoked(place)
        self.new.granted(place, self._state.now_ns)  # it may not have heard of it
        self.new.revoked(place)

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        self.old.reported(request, entries, now_ns)

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        self.old.absent(request, entries, now_ns)

    def resumed(self, request: RequestId, now_ns: int) -> None:
        self.old.resumed(request, now_ns)

    def missed(self, request: RequestId, entries: Iterable[MissEntry], now_ns: int) -> None:
        self.old.missed(request, entries, now_ns)

    def detached(self, request: RequestId) -> None:
        self.old.detached(request)
        self.new.detached(request)

    def coldest(self, now_ns: int) -> Iterable[Place]:
        return self.old.coldest(now_ns)

    def ahead(self, now_ns: int) -> Iterable[Hunch]:
        return self.old.ahead(now_ns)


class RowChange:
    """One change under way."""

    def __init__(self, state: State, name: str) -> None:
        self._table, self._state = state.rows, state
        before = state.rows.policy
        old = before.old if isinstance(before, TwoPolicies) else before
        self._policies = state.rows.policy = TwoPolicies(state, old, ROW_POLICIES[name]())
        self._table.limits = replace(self._table.limits, policy=name)
        self._left = [(request, 0) for request in self._table.by_id.values()]

    def slice(self) -> bool:
        """Tell the new policy of a bounded number more; False when it knows all, and has taken over."""
        for _ in range(TOLD_PER_EVENT_MAX):
            if not self._left:
                self._table.policy = self._policies.new
                return False
            request, position = self._left.pop()
            if not request.live or position >= len(request.granted):
                continue
            self._left.append((request, position + 1))
            for chunk in chunks_in(request.granted[position]):
                self._policies.new.granted(Place(request.id, position, chunk), self._state.now_ns)
        return True
