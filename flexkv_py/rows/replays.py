"""What steps selected, and what they missed: heat for the policy, and promotions for steps that failed.

What a failed step needs is pinned from its report on: promoted, granted, and not revoked before the step has succeeded
or the replay is refused. Every replay comes to one of these ends, for each has a time limit. Called by the planner.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice

from flexkv_py.core.blocks import CopyState, DramCopy, Index
from flexkv_py.core.messages import AbsentEntry, HeatEntry, HeatReported, Priority, RefuseReplay, ReplayOutcome
from flexkv_py.core.placement import source_below
from flexkv_py.core.room import promote
from flexkv_py.core.state import State
from flexkv_py.rows.attached import Running, grant
from flexkv_py.rows.grants import Rank
from flexkv_py.rows.table import Want, by_request

WANTS_PER_EVENT_MAX = 64
WANT_READS_MAX = 3
HUNCHES_PER_EVENT_MAX = 16


def on_heat(state: State, event: HeatReported) -> None:
    """Heat goes to the policy; what failed a step is to come, and stays until the step has succeeded."""
    mine, policy = state.rows.of_session.get(event.session, {}), state.rows.policy
    for called, entries in by_request(event.entries).items():
        if called in mine:
            request = mine[called]
            policy.reported(request.id, [entry for entry in entries if _exists(request, entry)], state.now_ns)
    for called in event.replayed:
        if called in mine:
            _end_replay(state, mine[called], mine[called].ranks[event.session])
    for called, absents in by_request(event.absents).items():
        if called in mine:
            request = mine[called]
            missed = [absent for absent in absents if _exists(request, absent)]
            policy.absent(request.id, missed, state.now_ns)
            _begin_replay(state, request, request.ranks[event.session], missed)


def _exists(request: Running, entry: HeatEntry | AbsentEntry) -> bool:
    return entry.block < len(request.keys) and entry.chunk < request.index.chunk_count


def _begin_replay(state: State, request: Running, rank: Rank, absents: list[AbsentEntry]) -> None:
    """Pin what the step missed, and have it brought in; or say at once that it will not come."""
    table, limits = state.rows, state.rows.limits
    if absents and all(_is_awaited(request, rank, absent) for absent in absents):
        return  # asked for again, because it left again: no step has failed for that
    rank.replays += 1
    if rank.replays > limits.absent_replays_max:
        why = f"the step failed {rank.replays} times in a row (absent_replays_max): load it whole, or recompute"
        _refuse(state, request, rank, ReplayOutcome.TOO_MANY, why)
        return
    table.begin_turn(request)
    for absent in absents:
        missed = request.missing(absent.block)
        rank.wanted[absent.block] = rank.wanted.get(absent.block, 0) | 1 << absent.chunk
        if request.missing(absent.block) != missed:
            table.want(request, absent.block)
    pinned_pages = request.index.frame_pages * sum(chunks.bit_count() for chunks in rank.wanted.values())
    if pinned_pages > limits.pinned_share_max * state.frames.total_pages:
        why = "the step needs more than its share of DRAM (pinned_share_max): recompute, or give it more"
        _refuse(state, request, rank, ReplayOutcome.NO_ROOM, why)
        return
    rank.wanted_until_ns = state.now_ns + limits.replay_ns_max
    state.wake_at(rank.wanted_until_ns, "replay", request.id)


def _is_awaited(request: Running, rank: Rank, absent: AbsentEntry) -> bool:
    return bool(rank.wanted.get(absent.block, 0) & ~request.granted[absent.block] & 1 << absent.chunk)


def _end_replay(state: State, request: Running, rank: Rank) -> None:
    rank.wanted.clear()
    rank.replays = 0
    state.rows.end_turn(request)


def _refuse(state: State, request: Running, rank: Rank, outcome: ReplayOutcome, why: str) -> None:
    """The rank's step need not wait any more. The engine tells its other ranks, as it does when a step fails."""
    _end_replay(state, request, rank)
    state.count("replays_refused", outcome.value)
    state.out.append(RefuseReplay(rank.session, request.called, outcome, why))


class _Want(Enum):
    """What became of one look at a want."""

    SETTLED = 1
    LATER = 2  # it is on its way, or must be let go first
    NO_ROOM = 3


def serve_wants(state: State) -> None:
    """Bring in what failed steps need. Nobody takes room that one who began to fail earlier waits for."""
    table, left = state.rows, WANTS_PER_EVENT_MAX
    table.elder = None
    _look_at_coming(state)
    for request in list(table.wants):
        while left and (wants := table.wants.get(request)):
            left -= 1
            look = _bring(state, wants[0])
            if look is _Want.NO_ROOM:
                if table.short_pages and (table.elder is None or not request.index.owner.at_quota):
                    table.elder = request
                if not request.index.owner.at_quota:
                    return
                break
            want = wants.popleft()
            if look is _Want.LATER:
                table.coming.append(want)


def _look_at_coming(state: State) -> None:
    """What has come, or has failed to, is to be looked at in its turn."""
    table = state.rows
    for _ in range(min(len(table.coming), WANTS_PER_EVENT_MAX)):
        want = table.coming.popleft()
        wants = table.wants.get(want.request)
        if wants is None:
            continue
        block = want.request.index.blocks.get(want.request.keys[want.position])
        if block is not None and block.dram is not None and block.dram.state is CopyState.FILLING:
            table.coming.append(want)
        else:
            wants.append(want)


def _bring(state: State, want: Want[DramCopy, Index]) -> _Want:
    request, position = want.request, want.position
    chunks = request.missing(position)
    if not chunks or not request.live:
        return _Want.SETTLED
    block = None if request.index.closed else request.index.blocks.get(request.keys[position])
    dram = None if block is None else block.dram
    if dram is not None and dram.state is CopyState.FILLING:
        return _Want.LATER
    if dram is not None and chunks & dram.present:
        state.rows.settle_going(dram, chunks)
        grant(state, dram)
        return _Want.LATER  # until nothing is missing
    source = None if block is None else source_below(state, block)
    if block is None or source is None or want.reads == WANT_READS_MAX:
        why = f"block {position} is in no tier that could give it: recompute"
        for rank in request.ranks.values():
            if position in rank.wanted:
                _refuse(state, request, rank, ReplayOutcome.LOST, why)
        return _Want.SETTLED
    if promote(state, block, source, chunks, Priority.LOAD) is None:
        return _Want.NO_ROOM
    want.reads += 1
    return _Want.LATER


def serve_hunches(state: State) -> None:
    """Bring back what the policy takes for needed soon; what finds no room waits for it, and is the next to get it."""
    table = state.rows
    if table.elder is not None:
        return  # a step that failed waits for room
    table.hunches.extend(hunch.place for hunch in islice(table.policy.ahead(state.now_ns), HUNCHES_PER_EVENT_MAX))
    for _ in range(min(len(table.hunches), HUNCHES_PER_EVENT_MAX)):
        place = table.hunches[0]
        request = table.by_id.get(place.request)
        known = request is not None and place.block < len(request.keys)  # a neighbour of the last is not
        block = request.index.blocks.get(request.keys[place.block]) if request is not None and known else None
        source = None if block is None or block.index.closed else source_below(state, block)
        if block is not None and source is not None:
            dram = block.dram
            absent = dram is None or (dram.state is CopyState.READY and dram.lacks >> place.chunk & 1)
            if absent and promote(state, block, source, 1 << place.chunk, Priority.PREFETCH) is None:
                return
        table.hunches.popleft()


def refuse_late(state: State, request: Running) -> None:
    """The time limit of a replay has come: what is still missing is refused, and a step that is not tried yields."""
    for rank in request.ranks.values():
        if not rank.wanted or rank.wanted_until_ns > state.now_ns:
            continue
        if not any(chunks & ~request.granted[position] for position, chunks in rank.wanted.items()):
            state.rows.end_turn(request, late=True)
        else:
            why = "what the step needs did not come in time (replay_s_max): DRAM or its tier is too busy; recompute"
            _refuse(state, request, rank, ReplayOutcome.NO_ROOM, why)
