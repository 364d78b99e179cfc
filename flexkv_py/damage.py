"""Copies that somebody read again and found damaged: they are no copies any more, before anyone is given their bytes.

An extension of the planner, as `operating` is. Damage that a promotion or a demotion meets is told by its end instead;
this is for who looks after copies that nobody asked for, such as a check of a whole tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flexkv_py.core.blocks import CopyState, DramCopy
from flexkv_py.core.messages import BlockName, ExtensionEvent, Fault, Tier
from flexkv_py.core.moves import fail_fill, lose_record
from flexkv_py.core.state import State
from flexkv_py.rows.attached import revoke_copy


@dataclass(slots=True)
class DamageFound(ExtensionEvent):
    """The bytes at this place are not this block's. `place` is the copy's: packed frames of DRAM, else its location."""

    tier: Tier
    block: BlockName
    place: bytes | int
    detail: str
    now_ns: int


def handlers(state: State) -> Mapping[type[Any], Callable[[Any], None]]:
    """What `Planner(config, extensions=[…])` adds."""
    return {DamageFound: partial(on_damage, state)}


def on_damage(state: State, event: DamageFound) -> None:
    """Let go of the copy, unless it is another one by now. Of a record below the tier is told to drop it."""
    index = state.indexes.get((event.block.namespace, event.block.shard))
    block = None if index is None else index.blocks.get(event.block.key)
    copy = None if block is None else block.copy_in(event.tier)
    if copy is None or copy.state is not CopyState.READY or copy.place != event.place:
        return
    state.count("faults", f"{event.tier.name.lower()}_{Fault.CORRUPT.value}")
    state.tell(event.block.key, "fault", event.tier, f"{Fault.CORRUPT.value}: {event.detail}")
    if isinstance(copy, DramCopy):
        revoke_copy(state, copy)
        fail_fill(state, copy)
    else:
        lose_record(state, copy)
