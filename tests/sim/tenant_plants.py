"""Bugs to plant in what tenants may use, and in whose room is taken. See `plants`."""

from __future__ import annotations

from typing import Any

from flexkv_py.core import demands, moves, room
from flexkv_py.core.blocks import DramCopy
from flexkv_py.core.messages import Tier
from flexkv_py.core.state import Level, State
from flexkv_py.tenants import keeping, naming
from flexkv_py.tenants.ranking import Ranking
from flexkv_py.tenants.shelf import Shelf
from tests.sim.plant import Plant, planter

PLANTS: dict[str, Plant] = {}
_plant = planter(PLANTS)


@_plant("what a tenant used is not given back when its block leaves DRAM", (moves, "give_frames"))
def _usage_kept(right: Any) -> Any:
    def give_frames(state: State, copy: DramCopy, chunks: int) -> None:
        right(state, copy, chunks)
        copy.block.index.charge(Tier.DRAM, 4096)

    return give_frames


@_plant("a demotion asks for the tier's room, and for no quota", (room, "make_room"), (demands, "make_room"))
def _quota_ignored(right: Any) -> Any:
    def make_room(state: State, level: Level, index: Any) -> Any:
        shelf = index.shelves[level.tier]
        quota, shelf.capacity_bytes = shelf.capacity_bytes, 0
        answer = right(state, level, index)
        shelf.capacity_bytes = quota
        return answer

    return make_room


@_plant("frames are taken whatever the tenant's quota of DRAM", (Shelf, "lacks"))
def _quota_of_dram_ignored(_: Any) -> Any:
    return lambda _self, _more_bytes: False


@_plant("room is taken from the tenant that has least", (Ranking, "fullest"))
def _smallest_gives(_: Any) -> Any:
    def fullest(self: Any) -> Any:
        return min((shelf for shelf in self.shelves if shelf.count), key=lambda shelf: shelf.fullness, default=None)

    return fullest


@_plant("a block outlives the time its save gave it", (keeping, "_expire"))
def _kept_for_ever(_: Any) -> Any:
    return lambda _state, _block: None


@_plant("what is found before its tenant is named stays the unknown's", (naming, "move_slice"))
def _never_moved(_: Any) -> Any:
    return lambda state: state.moving.clear()
