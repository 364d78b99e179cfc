"""Eviction orders, one file each, behind one protocol. A new one is a file plus a line here."""

from __future__ import annotations

from collections.abc import Callable

from flexkv_py.core.policies.base import Policy
from flexkv_py.core.policies.lru import LeastRecentlyUsed

POLICIES: dict[str, Callable[[], Policy]] = {"lru": LeastRecentlyUsed}

__all__ = ["POLICIES", "LeastRecentlyUsed", "Policy"]
