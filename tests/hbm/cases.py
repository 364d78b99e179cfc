"""Sizes the row path is tested at: every row size and granularity of the field, one and four queries."""

from __future__ import annotations

from tests.hbm.world import Case

CASES = (
    Case((656,)),
    Case((1152,), queries=4, slots=48),
    Case((584,), per_id=4, queries=4, slots=34, selected=8, block=64),
    Case((656,), queries=4, selected=5, slots=37),
    Case((64, 64), block=64, per_id=64, partial=True, selected=3, slots=7, layers=1),
    Case((32, 16), block=128, per_id=128, partial=True, queries=4, selected=2, slots=9, layers=1),
    Case((256, 256), per_id=1, selected=7, slots=21),
)

LARGE_CASES = (
    Case((16,), block=64, blocks=96, selected=2048, slots=4096, layers=1),
    Case((16,), block=64, blocks=96, selected=600, slots=2500, queries=4, layers=1),
)
"""Tiles are 2,048 picks and slots: one full tile of picks and two of slots, then 2,400 picks, both tiles ragged."""
