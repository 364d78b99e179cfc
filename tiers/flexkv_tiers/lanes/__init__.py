"""Copies between a worker's registered memory and frames, as awaitables in priority order."""

from flexkv_tiers.lanes.base import CopyTask, Direction, Lanes
from flexkv_tiers.lanes.cpu import CpuLanes

__all__ = ["CopyTask", "CpuLanes", "Direction", "Lanes"]
