"""Eviction orders, one file each, behind one protocol. A new one is a file plus a line here."""

from __future__ import annotations

from collections.abc import Callable

from flexkv_py.core.policies.adaptive import Adaptive
from flexkv_py.core.policies.base import Policy
from flexkv_py.core.policies.lru import LeastRecentlyUsed
from flexkv_py.core.policies.s3fifo import SmallMainFifo

POLICIES: dict[str, Callable[[int], Policy]] = {
    "adaptive": Adaptive,
    "lru": LeastRecentlyUsed,
    "s3fifo": SmallMainFifo,
}

__all__ = ["POLICIES", "Adaptive", "LeastRecentlyUsed", "Policy", "SmallMainFifo"]
