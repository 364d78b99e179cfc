"""What `Planner(config, extensions=[handlers])` adds: handlers of the operator's events, and what they do in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flexkv_py.core.state import State
from flexkv_py.operating.messages import (
    DrainEnded,
    OperationAsked,
    OperationCancelled,
    PinAsked,
    RulesChanged,
    UnpinAsked,
)
from flexkv_py.operating.operations import Operations
from flexkv_py.operating.pins import Pins
from flexkv_py.operating.rules import Changes


class Operating:
    """The operator's side of one planner."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.pins = Pins(state)
        self.changes = Changes(state)
        self.operations = Operations(state, self.changes)

    def handlers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """Who handles what."""
        return {
            PinAsked: partial(self._begin, self.pins.on_pin),
            UnpinAsked: self.pins.on_unpin,
            OperationAsked: partial(self._begin, self.operations.on_asked),
            OperationCancelled: self.operations.on_cancelled,
            RulesChanged: partial(self._begin, self.changes.on_rules),
            DrainEnded: self._on_drain_ended,
        }

    def _begin(self, handle: Callable[[Any], None], event: Any) -> None:
        """There may be work from now on, which goes on after every event."""
        handle(event)
        if self.go_on not in self._state.chores:
            self._state.chores.append(self.go_on)

    def go_on(self) -> None:
        """A bounded step of all that is under way; when nothing is left, nobody pays for being asked."""
        self.pins.expire()
        self.changes.move()
        self.operations.go_on()
        if not (self.pins.waiting or self.changes.waiting or self.operations.running):
            self._state.chores.remove(self.go_on)

    def _on_drain_ended(self, _: DrainEnded) -> None:
        self._state.draining = False


def handlers(state: State) -> Mapping[type[Any], Callable[[Any], None]]:
    """See the module's docstring."""
    return Operating(state).handlers()
