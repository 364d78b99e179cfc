"""Bugs of the operator's side to plant: see `plants`, which has them all."""

from __future__ import annotations

from typing import Any

from flexkv_py import damage, explain
from flexkv_py.core import endings, moves
from flexkv_py.core.blocks import Block
from flexkv_py.operating.acts import Evict
from flexkv_py.operating.operations import Operations
from flexkv_py.operating.pins import Pins
from flexkv_py.operating.rules import Moving
from tests.sim.plant import Plant, planter

WISH_PLANTS: dict[str, Plant] = {}
_plant = planter(WISH_PLANTS)


@_plant("a pin is forgotten when its time is over", (Pins, "expire"))
def _pin_forgotten_at_its_end(_: Any) -> Any:
    def expire(_self: Pins) -> None:
        return

    return expire


@_plant("an eviction by the operator takes a pinned copy", (Evict, "begin"))
def _evicted_while_pinned(right: Any) -> Any:
    def begin(self: Evict, block: Block) -> Any:
        copy = block.copy_in(self._tier)
        if copy is not None:
            moves.forget_pin(self._state, copy)
        return right(self, block)

    return begin


@_plant("a change of the policy loses a copy from its order", (Moving, "move"))
def _lost_while_moving(right: Any) -> Any:
    def move(self: Moving, copies_max: int) -> int:
        copy = self.old.coldest()
        if copy is not None and copy.queue is not None and copy.block.key[0] % 4 == 0:
            copy.queue.remove(copy)
        moved: int = right(self, copies_max)
        return moved

    return move


@_plant("an orphan is explained as a hit", (explain, "_first_gap"))
def _orphan_explained_as_a_hit(_: Any) -> Any:
    def first_gap(_state: Any, _block: Block) -> None:
        return None

    return first_gap


@_plant("an operation that is given up ends without a word", (Operations, "_give_up"))
def _operation_without_end(right: Any) -> Any:
    def give_up(self: Operations, operation: Any, why: str) -> None:
        right(self, operation, why)
        self._state.out.pop()

    return give_up


@_plant("a pin outlives the copy it kept", (moves, "forget_pin"))
def _pin_outlives_a_loss(_: Any) -> Any:
    def forget_pin(_state: Any, _copy: Any) -> None:
        return

    return forget_pin


@_plant("damage is laid to whatever copy lies there by now", (damage, "on_damage"))
def _damage_of_another_copy(right: Any) -> Any:
    def on_damage(state: Any, event: Any) -> None:
        index = state.indexes.get((event.block.namespace, event.block.shard))
        block = None if index is None else index.blocks.get(event.block.key)
        copy = None if block is None else block.copy_in(event.tier)
        event.place = event.place if copy is None else copy.place
        right(state, event)

    return on_damage


@_plant("a block whose source was found damaged is not linked when its write has ended", (endings, "_demoted"))
def _link_not_renewed_by_a_write(right: Any) -> Any:
    def demoted(state: Any, transfer: Any, result: Any) -> None:
        settle, endings.settle = endings.settle, lambda _state, _block: None
        right(state, transfer, result)
        endings.settle = settle

    return demoted
