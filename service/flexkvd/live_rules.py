"""Rules of the planner that the running configuration changes: told to it when they do. Listens to `settings`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flexkv_py.core.config import PlannerConfig
from flexkv_py.operating.messages import Rules
from flexkvd.config import Config
from flexkvd.operations import Operations
from flexkvd.planning import planner_config


class LiveRules:
    """Called with every configuration to come; remembers what the planner was told last."""

    def __init__(self, told: PlannerConfig, operations: Operations) -> None:
        self._told = told
        self._operations = operations

    def __call__(self, config: Config) -> None:
        wanted = planner_config(config)
        if (rules := rules_between(self._told, wanted)) != Rules():
            self._operations.change(rules)
        self._told = wanted


def rules_between(before: PlannerConfig, after: PlannerConfig) -> Rules:
    """What of the rules is another afterwards; the rest stays as it is, the debt of a write budget too."""
    old, new = _values(before), _values(after)
    return Rules(**{name: value for name, value in new.items() if value != old[name]})


def _values(told: PlannerConfig) -> dict[str, Any]:
    """By the names of `Rules`; all but one are those of the planner's configuration too."""
    rows = {"row_policy": told.rows.policy}
    return {each.name: rows[each.name] if each.name in rows else getattr(told, each.name) for each in fields(Rules)}
