"""Policies as answers: where copies stand in the eviction orders, and what the row policy guessed rightly."""

from __future__ import annotations

from typing import Any

from flexkv_py.core.policies.adaptive import Adaptive
from flexkv_py.core.policies.base import Policy
from flexkv_py.core.state import Level, State
from flexkv_py.operating.rules import Moving
from flexkv_py.rows.policy import RowPolicy
from flexkv_py.rows.sparse import SparseRows
from flexkv_py.rows.succession import Succession


def policy_facts(state: State) -> dict[str, Any]:
    """Eviction orders by tier, what admits blocks below, and the row policy's record."""
    tiers = [{"tier": level.word, **_order(state, level)} for level in state.levels.values()]
    return {
        "tiers": tiers,
        "admission": {level.word: level.hits_min for level in state.below},
        "row_policy": _row_policy(state),
    }


def _order(state: State, level: Level) -> dict[str, Any]:
    """The eviction orders of all tenants together; what is learnt, of the fullest. High priority counts as `again`.

    While copies move into another order, those still on their way stand in its lists.
    """
    shelves = level.shelves
    parts = [part for shelf in shelves for part in parts_of(shelf.policy)]
    fullest = max(shelves, key=lambda shelf: shelf.fullness, default=None)  # asking the ranking would change it
    wanted = None if fullest is None else parts_of(fullest.policy)[-1]
    return {
        "policy": state.config.policy,
        "lists": {
            "cold": sum(shelf.reclaimable.count for shelf in shelves) + sum(part.cold.count for part in parts),
            "once": sum(part.once.count for part in parts),
            "again": sum(part.again.count for part in parts) + sum(shelf.high.count for shelf in shelves),
        },
        "parameters": {"share_for_once": wanted.duel.best.share} if isinstance(wanted, Adaptive) else {},
    }


def parts_of(policy: Policy) -> tuple[Policy, ...]:
    """One order, or two while copies move from one into the other."""
    return (policy.old, policy.new) if isinstance(policy, Moving) else (policy,)


def guesses(state: State) -> dict[str, int]:
    """What the row policy thought to be needed soon, and what of it was: running totals."""
    policy = _deciding(state)
    if not isinstance(policy, SparseRows):
        return {"predicted": 0, "came_true": 0}
    return {"predicted": policy.predicted.total(), "came_true": policy.came_true.total()}


def _deciding(state: State) -> RowPolicy:
    """The row policy that decides: the old one, until the new one knows all."""
    policy = state.rows.policy
    return policy.old if isinstance(policy, Succession) else policy


def _row_policy(state: State) -> dict[str, Any]:
    policy = _deciding(state)
    kinds: list[dict[str, Any]] = []
    if isinstance(policy, SparseRows):
        kinds = [
            {"kind": reason.value, "predicted": count, "came_true": policy.came_true[reason]}
            for reason, count in policy.predicted.items()
        ]
    return {"name": state.rows.limits.policy, "requests": len(state.rows.by_id), **guesses(state), "kinds": kinds}
