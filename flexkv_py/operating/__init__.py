"""What an operator wishes of the planner, purely: pins, evictions, demotions, prefetches, other rules, explanations."""

from __future__ import annotations

from flexkv_py.operating.extension import handlers

__all__ = ["handlers"]
