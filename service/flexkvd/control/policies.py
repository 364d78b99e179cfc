"""Policies as answers: where copies stand in the eviction orders, and what the row policy guessed rightly."""

from __future__ import annotations

from typing import Any

from flexkv_py.core.policies import POLICIES
from flexkv_py.core.policies.adaptive import Adaptive
from flexkv_py.core.policies.base import Policy
from flexkv_py.core.state import State
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.sparse import SparseRows


def policy_facts(state: State) -> dict[str, Any]:
    """Eviction orders by tier, what admits blocks below, and the row policy's record."""
    words = {policy: word for word, policy in POLICIES.items()}
    tiers = [
        {
            "tier": level.word,
            "policy": words[type(level.policy)],
            "lists": {
                "cold": level.policy.cold.count + level.reclaimable.count,
                "once": level.policy.once.count,
                "again": level.policy.again.count,
            },
            "parameters": _parameters(level.policy),
        }
        for level in state.levels.values()
    ]
    return {
        "tiers": tiers,
        "admission": {level.word: level.hits_min for level in state.below},
        "row_policy": _row_policy(state),
    }


def _parameters(policy: Policy) -> dict[str, float]:
    return {"share_for_once": policy.duel.best.share} if isinstance(policy, Adaptive) else {}


def guesses(state: State) -> dict[str, int]:
    """What the row policy thought to be needed soon, and what of it was: running totals."""
    policy = state.rows.policy
    if not isinstance(policy, SparseRows):
        return {"predicted": 0, "came_true": 0}
    return {"predicted": policy.predicted.total(), "came_true": policy.came_true.total()}


def _row_policy(state: State) -> dict[str, Any]:
    policy = state.rows.policy
    kinds: list[dict[str, Any]] = []
    if isinstance(policy, SparseRows):
        kinds = [
            {"kind": reason.value, "predicted": count, "came_true": policy.came_true[reason]}
            for reason, count in policy.predicted.items()
        ]
    [name] = [word for word, kind in ROW_POLICIES.items() if type(policy) is kind]
    return {"name": name, "requests": len(state.rows.by_id), **guesses(state), "kinds": kinds}
