"""Running requests and their workers: attach, detach, acknowledge; what of DRAM they may read, and telling them.

A request that was granted anything of a DRAM copy is one of its readers. Whatever is in DRAM of its blocks is granted,
whoever brought it there, unless it is about to leave. Called by the planner.
"""

from __future__ import annotations

from flexkv_py.core.blocks import CopyState, DramCopy, Index
from flexkv_py.core.messages import (
    AttachAnswered,
    LoseSession,
    PagesAcknowledged,
    RequestAttached,
    RequestDetached,
    RequestDone,
    WorkerGone,
)
from flexkv_py.core.moves import unpin
from flexkv_py.core.recovery import index_of
from flexkv_py.core.sessions import Session
from flexkv_py.core.state import State
from flexkv_py.core.tickets import refuse
from flexkv_py.errors import ErrorCode
from flexkv_py.rows.grants import Request, chunks_in
from flexkv_py.rows.policy import Place

Running = Request[DramCopy, Index]


def on_attached(state: State, event: RequestAttached) -> None:
    """The session decodes a request with these blocks; grant what is in DRAM of them."""
    session, table = state.sessions[event.session], state.rows
    index = index_of(state, session)
    owner = session.instance or session.id
    mine, named = table.find(event.session, event.request), table.named(index, owner, event.request)
    if mine is not None and mine[0] is not named:
        why = f"the namespace of request {event.request} was reset: detach it, then attach it again"
        refuse(state, event.session, event.asked, 0, ErrorCode.BAD_ARGUMENT, why)
        return
    if state.draining and mine is None:
        refuse(state, event.session, event.asked, 0, ErrorCode.DRAINING, "the daemon drains: it admits nothing new")
        return
    refusal = table.refusal(named, event)
    if refusal is not None:
        refuse(state, event.session, event.asked, 0, *refusal)
        return
    revived = named is not None and not named.live
    request, rank = table.join(index, owner, event)
    if revived:
        for position, chunks in enumerate(request.granted):
            _tell_policy(state, request, position, chunks)
    if mine is not None:
        table.policy.resumed(request.id, state.now_ns)
    state.out.append(AttachAnswered(event.session, event.asked, event.request, request.version))
    for position in request.attach(rank, event.first, event.keys):
        key = request.keys[position]
        index.attached[key] = (*index.attached.get(key, ()), request)
    for position, key in enumerate(event.keys, event.first):
        block = index.blocks.get(key)
        if block is not None and block.dram is not None:
            _grant_to(state, request, position, block.dram)
    table.changed[request] = None


def on_detached(state: State, event: RequestDetached) -> None:
    """The session has no step in flight that reads the request: that acknowledges everything."""
    found = state.rows.find(event.session, event.request)
    if found is None:
        why = f"this session has no request {event.request} attached: it was detached already, or never attached"
        refuse(state, event.session, event.asked, 0, ErrorCode.BAD_ARGUMENT, why)
        return
    state.rows.leave(*found)
    state.out.append(RequestDone(event.session, event.asked))


def on_acknowledged(state: State, event: PagesAcknowledged) -> None:
    """Revocations up to this version take effect for one rank. One that comes again does nothing."""
    found = state.rows.find(event.session, event.request)
    if found is not None:
        request, rank = found
        if event.version > rank.told:
            why = f"version {event.version} of request {event.request} was never sent: acknowledge what was received"
            state.out.append(LoseSession(event.session, ErrorCode.BAD_ARGUMENT, why))
            return
        request.acknowledge(rank, event.version)
        state.rows.letting_go[request] = None
    if event.asked:
        state.out.append(RequestDone(event.session, event.asked))


def on_worker_gone(state: State, event: WorkerGone) -> None:
    """Nothing maps the arena for a closed session any more."""
    assert event.session not in state.sessions
    for request in list(state.rows.of_session.get(event.session, {}).values()):
        state.rows.leave(request, request.ranks[event.session])


def close_ranks(state: State, session: Session) -> None:
    """The session's socket is gone; its process may still read what it was granted."""
    for request in state.rows.of_session.get(session.id, {}).values():
        request.close(request.ranks[session.id])
        state.rows.end_turn(request)
        if not request.live:  # nothing of it can be had before its processes are gone
            state.rows.policy.detached(request.id)


# ----------------------------------------------------------------- letting go


def let_go(state: State) -> None:
    """Of what has ended, a bounded number of blocks: a million tokens at once would hold up everybody."""
    waiting = state.rows.letting_go
    for _ in range(state.rows.limits.let_go_per_event_max):
        if not waiting:
            return
        request = next(iter(waiting))
        if not request.ranks and request.keys:
            _forget_last(state, request)
        elif request.ranks and request.behind:
            _released(state, request.settle())
        elif request.open:
            request.open -= 1
            if request.granted[request.open]:
                revoke(state, request, request.open, request.granted[request.open])
        else:
            del waiting[request]
    state.more = state.more or bool(waiting)


def _forget_last(state: State, request: Running) -> None:
    """Of a chain the head is to stay longest."""
    key, copy = request.drop_last()
    reading = request.index.attached.pop(key)
    if len(reading) > 1:
        request.index.attached[key] = tuple(other for other in reading if other is not request)
    _released(state, copy)


def _released(state: State, copy: DramCopy | None) -> None:
    """A request reads this copy no more. What came in its place meanwhile may be read now."""
    if copy is None:
        return
    unpin(state, copy)
    block = copy.block.index.blocks.get(copy.block.key)
    if block is not None and block.dram is not None and block.dram is not copy:
        grant(state, block.dram)


# ------------------------------------------------------------------ granting


def grant(state: State, copy: DramCopy) -> None:
    """Let every running request that has the block read what is there of this copy."""
    attached = copy.block.index.attached
    for request in attached.get(copy.block.key, ()) if attached else ():
        _grant_to(state, request, request.positions[copy.block.key], copy)


def _grant_to(state: State, request: Running, position: int, copy: DramCopy) -> None:
    if copy.state is not CopyState.READY or not request.live or request.index.closed:
        return
    chunks = copy.present & ~request.granted[position] & ~state.rows.going.get(copy, 0)
    if not chunks or request.copies[position] not in (None, copy):  # it still reads an older one: once that is let go
        return
    if request.grant(position, copy, chunks):
        state.pin(copy)
    _tell_policy(state, request, position, chunks)
    state.rows.changed[request] = None


def _tell_policy(state: State, request: Running, position: int, chunks: int) -> None:
    for chunk in chunks_in(chunks):
        state.rows.policy.granted(Place(request.id, position, chunk), state.now_ns)


def revoke_copy(state: State, copy: DramCopy) -> None:
    """It is no copy any more."""
    for request, position in readers(copy):
        if request.granted[position]:
            revoke(state, request, position, request.granted[position])


def revoke_closed(state: State) -> None:
    """A namespace was reset: its running requests may read nothing more, whatever it costs."""
    for request in state.rows.by_id.values():
        if request.index.closed:
            request.open = len(request.keys)
            state.rows.letting_go[request] = None


def revoke(state: State, request: Running, position: int, chunks: int) -> None:
    """Let one request read these chunks (mask) no more, once all its ranks have acknowledged that."""
    request.revoke(position, chunks)
    if request.live:
        for chunk in chunks_in(chunks):
            state.rows.policy.revoked(Place(request.id, position, chunk))
    if request.pinned(position) & chunks:
        _want_again(state, request, position)
    state.rows.changed[request] = None


def _want_again(state: State, request: Running, position: int) -> None:
    """What a failed step had already must be read once more. It comes within the time limit, or is refused."""
    state.rows.want(request, position)
    for rank in request.ranks.values():
        if position in rank.wanted and rank.wanted_until_ns <= state.now_ns:
            rank.wanted_until_ns = state.now_ns + state.rows.limits.replay_ns_max
            state.wake_at(rank.wanted_until_ns, "replay", request.id)


def readers(copy: DramCopy) -> list[tuple[Running, int]]:
    """Requests that hold any chunk of this copy, and where."""
    key = copy.block.key
    requests = ((request, request.positions[key]) for request in copy.block.index.attached.get(key, ()))
    return [(request, position) for request, position in requests if request.copies[position] is copy]


def tell(state: State) -> None:
    """Tell the workers what has changed while the event was handled."""
    table = state.rows
    for request in table.changed:
        owed = 0
        for change in request.tell(state.now_ns):
            state.out.append(change)
            owed += len(change.revoked)
        if owed:
            state.wake_at(state.now_ns + table.limits.ack_ns_max, "ack", request.id)
    table.changed.clear()


def lose_late_ranks(state: State, request: Running) -> None:
    """Ranks that owe an acknowledgement for too long lose their sessions; what they hold is back when they are gone."""
    for rank in request.ranks.values():
        if rank.owes and rank.owes[0][1] + state.rows.limits.ack_ns_max <= state.now_ns:
            why = f"version {rank.owes[0][0]} of request {request.called} was not acknowledged in time (ack_s_max)"
            rank.owes.clear()
            state.out.append(LoseSession(rank.session, ErrorCode.ACK_OVERDUE, why))
