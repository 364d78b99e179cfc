"""Recounts what running requests may read: grants as readers, revocations by version, tables as workers have them."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from flexkv_py.core.blocks import Copy, CopyState, DramCopy, Index
from flexkv_py.core.state import State
from flexkv_py.rows.attached import Running
from flexkv_py.rows.grants import chunks_in


def check(state: State, indexes: list[Index]) -> None:
    """Assert that requests, indexes and what is on its way out agree."""
    table = state.rows
    known = [*table.by_id.values(), *_over(state)]
    indexes = list(dict.fromkeys([*indexes, *(request.index for request in known)]))
    attached = Counter((request, key) for index in indexes for key in index.attached for request in index.attached[key])
    for request in table.by_id.values():
        assert request.ranks, "a request without ranks is kept"
        for session, rank in request.ranks.items():
            assert table.of_session[session][request.called] is request
            assert rank.closed == (session not in state.sessions)
            assert rank.acknowledged <= rank.told <= request.version
            assert rank.listed <= rank.attached <= len(request.keys)
        for position, key in enumerate(request.keys):
            assert request.positions[key] == position
            assert attached.pop((request, key)) == 1
            _check_position(state, request, position)
        _check_versions(request, settled=request not in table.letting_go)
        assert request in table.letting_go or not (request.index.closed and any(request.granted))
    for request in _over(state):
        assert request not in table.by_id.values()
        for position, key in enumerate(request.keys):
            assert request.positions[key] == position
            assert attached.pop((request, key)) == 1
    assert not attached, f"{len(attached)} keys are attached to requests that are over"
    assert sum(map(len, table.of_session.values())) == sum(len(request.ranks) for request in table.by_id.values())
    assert not table.changed, "a change was not told"
    turns = [request.turn for request in table.wants]
    assert turns == sorted(turns), "whose step failed later is served before another"
    assert all(any(rank.wanted for rank in request.ranks.values()) for request in table.wants), "nobody waits"
    for request_id, position, chunk in deepcopy(table.policy).coldest(state.now_ns):
        assert table.by_id[request_id].granted[position] >> chunk & 1, "the policy offers what is not granted"
    for copy, chunks in table.going.items():
        assert chunks
        assert copy.block.dram is not copy or chunks & ~copy.present == 0, f"{copy}: what is not there is going"


def readers(state: State) -> Counter[Copy]:
    """Each request is one reader of each copy of which it holds anything."""
    requests = [*state.rows.by_id.values(), *_over(state)]
    return Counter(copy for request in requests for copy in request.copies if copy is not None)


def _over(state: State) -> list[Running]:
    """Requests that no rank decodes any more, whose last blocks are let go event by event."""
    return [request for request in state.rows.letting_go if not request.ranks]


def _check_position(state: State, request: Running, position: int) -> None:
    copy, held, granted = request.copies[position], request.held(position), request.granted[position]
    assert (copy is not None) == bool(held), f"block {position}: a copy is read without a grant, or granted without one"
    if copy is not None:
        assert held & ~copy.present == 0, f"{copy}: chunks are held that are not there"
        assert copy.state is not CopyState.DROPPED or not granted, f"{copy} is gone, and may still be read"
    block = request.index.blocks.get(request.keys[position])
    dram = None if block is None else block.dram
    decoded = any(position < rank.attached and not rank.closed for rank in request.ranks.values())
    if isinstance(dram, DramCopy) and dram.state is CopyState.READY and decoded and copy in (None, dram):
        there = 0 if request.index.closed else dram.present & ~state.rows.going.get(dram, 0)
        assert granted == there or request.index.closed, f"{dram}: {there:b} may be read, {granted:b} is granted"


def _check_versions(request: Running, *, settled: bool) -> None:
    """What is leaving is exactly what was revoked by a version that some rank has not acknowledged, once settled."""
    reached = min(rank.acknowledged for rank in request.ranks.values())
    leaving = {(at, chunk) for at, mask in enumerate(request.leaving) for chunk in chunks_in(mask)}
    assert leaving == set(request._newest), "what is leaving and what was revoked differ"
    assert not settled or all(version > reached for version in request._newest.values())
    assert not settled or all(version > reached for version, _ in request._told)
