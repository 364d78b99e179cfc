"""Indexes as wholes: what a tier still has at start, what a reset forgets, tiers that come and go."""

from __future__ import annotations

from flexkv_py.core import messages
from flexkv_py.core.blocks import DROPPED, FILLING, READY, RECORD_TYPES, Block, Copy, Index
from flexkv_py.core.links import relink, relink_slice
from flexkv_py.core.messages import BlockName, MoveKind, NamespaceSpec, RequestDone, Tier
from flexkv_py.core.moves import drop_record, evict, forget_pin, lose_record
from flexkv_py.core.sessions import Session
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Reset
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT
from flexkv_py.tenants.shelf import Shelf

RESET_BLOCKS_PER_EVENT_MAX = 256
DROPS_AGAIN_PER_EVENT_MAX = 16
RELINKS_PER_FOUND_MAX = 8
"""Links renewed per block found: more than one, so that a recovery in any order leaves few to be renewed after it."""


def index_of(state: State, session: Session) -> Index:
    """The index a session's messages are about. It may have been forgotten since the last one."""
    index = state.index(session.spec.digest, session.shard)
    introduce(state, index, session.spec)
    return index


def introduce(state: State, index: Index, spec: NamespaceSpec) -> None:
    """A session, or a record header, says how the blocks of an index are cut."""
    if index.spec is None:
        index.introduce(spec)
        _set_record_bytes(state, index, ALIGN_BYTES + spec.block_bytes)


def _set_record_bytes(state: State, index: Index, record_bytes: int) -> None:
    """The size of an index's records became known, or better known; what is counted follows."""
    more = record_bytes - index.record_bytes
    if more and index.record_bytes:
        strays = [copy for copy in state.dropped if copy.block.index is index]
        for copy in [copy for block in index.blocks.values() for copy in block.copies()] + strays:
            if copy.tier is not Tier.DRAM:
                state.levels[copy.tier].charge(index, more)
        for transfer in state.transfers.values():
            if transfer.kind is MoveKind.DROP and transfer.copy.block.index is index:
                state.levels[transfer.copy.tier].dropping(index, more)
    index.record_bytes = record_bytes


def on_blocks_found(state: State, event: messages.BlocksFound) -> None:
    """Records met at start become READY copies; what cannot be ours is counted and dropped."""
    index, level = _index_of_found(state, event), state.levels[event.tier]
    if index.spec is None and event.chunk_bytes:
        introduce(state, index, NamespaceSpec(event.namespace, event.chunk_bytes))
    # Until the geometry is known any size may be right: all are taken, each as the smallest, and reads tell them apart.
    if index.spec is None and (not index.record_bytes or event.record_bytes < index.record_bytes):
        _set_record_bytes(state, index, event.record_bytes)
    # A record may be smaller than its block: compressed.
    foreign = index.spec is not None and event.record_bytes > index.record_bytes
    made, state_found = RECORD_TYPES[event.tier], READY  # looked up once: a million come at start
    shelf, adopted = index.shelves[event.tier], 0
    for key, parent, location in event.blocks:
        block = index.blocks.get(key)
        if block is not None and block.copy_in(event.tier) is not None:
            _drop_second(state, block, event.tier, location)
            continue
        if level.let_go and BlockName(event.namespace, event.shard, key, parent) in level.let_go and not index.closed:
            continue  # a listing older than our drop; in a reset a second drop is safer than that guess
        if block is not None and block.parent != parent:
            state.count("faults", f"{event.tier.name.lower()}_foreign")
            continue
        if block is None:
            block = index.add(key, parent)
            block.uses = 1  # its save, in an earlier life
        copy = made(block, location, state_found)
        _adopt(state, copy, shelf)
        adopted += 1
        if foreign or index.closed:
            state.count("faults", f"{event.tier.name.lower()}_foreign", int(foreign))
            evict(state, copy, "the namespace was reset" if index.closed else "a record of another size")
    level.charge(index, adopted * index.record_bytes)
    relink_slice(state, RELINKS_PER_FOUND_MAX * len(event.blocks))
    state.count("found", event.tier.name.lower(), len(event.blocks))


def _index_of_found(state: State, event: messages.BlocksFound) -> Index:
    """The index records belong to; one that is closed at once, while their namespace is being reset."""
    reset = next((reset for reset in state.resets if reset.namespace == event.namespace), None)
    if reset is None:
        return state.index(event.namespace, event.shard)
    index = next((index for index in reset.found if index.shard == event.shard), None)
    if index is None:
        index = Index(event.namespace, event.shard, state.tenants.owner_of(event.namespace))
        index.closed = True
        reset.found.append(index)
        reset.indexes.append(index)
    return index


def on_records_lost(state: State, event: messages.RecordsLost) -> None:
    """The tier has let go of these by itself; a location we no longer know was dropped meanwhile."""
    tier = event.tier.name.lower()
    for record in event.records:
        index = state.indexes.get((record.block.namespace, record.block.shard))
        block = None if index is None else index.blocks.get(record.block.key)
        copy = None if block is None else block.copy_in(event.tier)
        if copy is not None and copy.state is FILLING:
            copy.place = lost_early(record.location)
        elif copy is not None and copy.state is READY and copy.location == record.location:
            state.tell(record.block.key, "lost", event.tier, event.reason)
            state.count("lost", tier)
            lose_record(state, copy, told_by_tier=True)


def lost_early(location: int) -> int:
    """The place of a copy whose record went before we heard that it was written."""
    return ~location


def on_recovery_finished(state: State, event: messages.RecoveryFinished) -> None:
    """Whatever is in the tier is known now."""
    state.levels[event.tier].recovering = False
    state.levels[event.tier].let_go.clear()


def drop_again(state: State) -> None:
    """Ask once more for drops that failed, a bounded number per event, while the tier is up."""
    for level in state.below:
        for _ in range(DROPS_AGAIN_PER_EVENT_MAX if level.undropped and level.up else 0):
            if not level.undropped or level.undropped[0][0] > state.now_ns:
                break
            drop_record(state, level.undropped.popleft()[1])
        else:
            state.more = state.more or (level.up and bool(level.undropped))


def _drop_second(state: State, block: Block, tier: Tier, location: int) -> None:
    """A block of which the tier has another record than the one we know.

    On SSD that record takes room of its own and is dropped. In S3 both may be one object, or the other may be what
    another daemon knows.
    """
    copy = block.copy_in(tier)
    if tier is Tier.S3 or (copy is not None and copy.place == location):
        state.count("found_twice", tier.name.lower())
        return
    second = RECORD_TYPES[tier](block, location, DROPPED)
    state.dropped[second] = None
    state.levels[tier].charge(block.index, block.index.record_bytes)
    drop_record(state, second)


def _adopt(state: State, copy: Copy, shelf: Shelf) -> None:
    """A record met at start is a READY copy."""
    block = copy.block
    index = block.index
    block.set_copy(copy.tier, copy)
    shelf.add(copy)
    if block.children is None and not block.linked:  # as `relink`, where there is nobody to spread it to
        above = index.blocks.get(block.parent)
        block.linked = block.parent == ROOT if above is None else above.linked
    else:
        relink(state, block)


def on_reset(state: State, event: messages.NamespaceReset) -> None:
    """Close the namespace's indexes at once; their copies go in bounded slices."""
    indexes = [state.indexes.pop(at) for at in list(state.indexes) if at[0] == event.namespace]
    reset = Reset(event.session, event.request, event.namespace, indexes)
    for index in indexes:
        index.closed = True
        reset.left.extend(index.blocks.values())
    state.resets.append(reset)


def pump_resets(state: State) -> None:
    """Let go of what nothing reads; the rest goes when its transfers end. Answer when all is gone."""
    recovering = any(level.recovering for level in state.below)
    for reset in list(state.resets):
        for _ in range(RESET_BLOCKS_PER_EVENT_MAX):
            if not reset.left:
                break
            for copy in reset.left.pop().copies():
                forget_pin(state, copy)
                if copy.state is READY and copy.readers == 0:
                    evict(state, copy, "the namespace was reset")
        state.more = state.more or bool(reset.left)
        if not reset.left and not recovering and _all_gone(state, reset):
            state.resets.remove(reset)
            if not reset.session or reset.session in state.sessions:  # 0: the daemon itself
                state.out.append(RequestDone(reset.session, reset.request))


def _all_gone(state: State, reset: Reset) -> bool:
    """Whether nothing is left of it, nor of an earlier reset of the same namespace."""
    if any(index.blocks for index in reset.indexes):
        return False
    if any(copy.block.index in reset.indexes for copy in state.dropped):
        return False
    return next(other for other in state.resets if other.namespace == reset.namespace) is reset


def on_tier_changed(state: State, event: messages.TierChanged) -> None:
    """A tier that is down serves nothing and counts as no place to go, but keeps its copies."""
    level = state.levels[event.tier]
    level.down_reason = event.reason
    if level.up == event.up:
        return
    level.up = event.up
    level.faults_in_row = level.pause_until_ns = 0
    state.count("tier_changes", f"{event.tier.name.lower()}_{'up' if event.up else 'down'}")
