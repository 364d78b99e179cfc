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
    then, now = _words(before), _words(after)
    return Rules(**{name: value for name, value in now.items() if then[name] != value})


def _words(told: PlannerConfig) -> dict[str, Any]:
    """What the planner was told, by the names of `Rules`."""
    plain = {each.name: getattr(told, each.name) for each in fields(Rules) if hasattr(told, each.name)}
    return {**plain, "row_policy": told.rows.policy}
