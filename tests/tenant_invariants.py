"""Recounts what every tenant uses of every tier, where its copies stand, and who may give room. See `invariants`."""

from __future__ import annotations

from collections import Counter

from flexkv_py.core.blocks import Copy, CopyState, DramCopy, Index
from flexkv_py.core.messages import MoveKind, Tier
from flexkv_py.core.state import Level, State
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.tenants.shelf import Shelf, Tenant


def check(state: State, indexes: list[Index], copies: list[Copy]) -> None:
    """Assert that all accounts of tenants are right."""
    _check_owners(state, indexes)
    _check_usage(state, indexes, [*copies, *state.dropped])
    for copy in copies:
        if copy.queue is not None and not state.moving:
            shelf = copy.block.index.shelves[copy.tier]
            assert any(copy.queue is each for each in shelf.lists), f"{copy} stands on another tenant's shelf"
    for level in state.levels.values():
        for shelf in level.shelves:
            assert shelf.ranked or not shelf.count, f"{shelf.owner} has copies, and is never asked for room"
            assert not (level.ranking.several and shelf.ranked) or shelf.fullness <= shelf.ranked_at
        _check_fullest(level)
    for block in state.retention.seconds:
        assert block.index.closed or block.index.blocks.get(block.key) is block, "a block that is gone is still kept"


def _check_fullest(level: Level) -> None:
    """Who gives room next is the fullest of those that have anything to give, found without the ranking."""
    chosen = _asked_without_change(level)
    fullest = max((shelf.fullness for shelf in level.shelves if shelf.count), default=0.0)
    if chosen is None or not chosen.count:
        assert not any(shelf.count for shelf in level.shelves), f"{level.word}: nobody gives room, and somebody could"
    else:
        assert chosen.fullness == fullest, f"{level.word}: {chosen.owner} gives room, and another is fuller"


def _asked_without_change(level: Level) -> Shelf | None:
    """The ranking's answer; what it tidies up when asked is put back: a check must not change what is checked."""
    ranking, heap = level.ranking, list(level.ranking._heap)
    ranks = [(shelf, shelf.ranked, shelf.ranked_at) for shelf in level.shelves]
    chosen = ranking.fullest()
    ranking._heap = heap
    for shelf, ranked, ranked_at in ranks:
        shelf.ranked, shelf.ranked_at = ranked, ranked_at
    return chosen


def _check_owners(state: State, indexes: list[Index]) -> None:
    owners = list(state.tenants)
    for index in indexes:
        assert any(owner is index.owner for owner in owners), f"{index.owner} has blocks, and is not known"
    sessions = Counter(session.owner for session in state.sessions.values())
    for owner in owners:
        assert owner.sessions == sessions[owner]
        for level in state.levels.values():
            assert owner.shelves[level.tier] in level.shelves
    assert sum(isinstance(owner.name, str) for owner in owners) <= state.config.tenants_max


def _check_usage(state: State, indexes: list[Index], copies: list[Copy]) -> None:
    used: Counter[tuple[Tenant, Tier]] = Counter()
    of_index: Counter[tuple[Index, Tier]] = Counter()
    dropping: Counter[tuple[Tenant, Tier]] = Counter()
    for copy in copies:
        bytes_used = _bytes_of(copy)
        used[copy.block.index.owner, copy.tier] += bytes_used
        of_index[copy.block.index, copy.tier] += bytes_used
    for row in state.transfers.values():
        if row.kind is MoveKind.DROP:
            dropping[row.copy.block.index.owner, row.copy.tier] += row.copy.block.index.record_bytes
    for index in indexes:
        for tier in state.levels:
            assert index.used_bytes[tier] == of_index[index, tier], f"{tier.name}: an index is miscounted"
    for owner in state.tenants:
        for tier in state.levels:
            shelf = owner.shelves[tier]
            assert shelf.used_bytes == used[owner, tier], (
                f"{tier.name}: {owner} is charged {shelf.used_bytes} bytes, and its copies take {used[owner, tier]}"
            )
            assert shelf.dropping_bytes == dropping[owner, tier], f"{tier.name}: drops of {owner} are miscounted"


def _bytes_of(copy: Copy) -> int:
    if not isinstance(copy, DramCopy):
        return copy.block.index.record_bytes
    assert copy.state is not CopyState.DROPPED or copy.readers
    return (copy.present | copy.filling).bit_count() * copy.block.index.frame_pages * ALIGN_BYTES
