"""What `Planner(config, extensions=[handlers])` adds: handlers of the operator's events, and what they do in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        state.chores += [self.pins.expire, self.changes.move, self.operations.go_on]

    def handlers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """Who handles what."""
        return {
            PinAsked: self.pins.on_pin,
            UnpinAsked: self.pins.on_unpin,
            OperationAsked: self.operations.on_asked,
            OperationCancelled: self.operations.on_cancelled,
            RulesChanged: self.changes.on_rules,
            DrainEnded: self._on_drain_ended,
        }

    def _on_drain_ended(self, _: DrainEnded) -> None:
        self._state.draining = False


def handlers(state: State) -> Mapping[type[Any], Callable[[Any], None]]:
    """See the module's docstring."""
    return Operating(state).handlers()
