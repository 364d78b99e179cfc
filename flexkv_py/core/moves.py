"""Starting and ending single moves: what each reserves, and what it gives back.

The call that emits an instruction also marks the frames, the reader and the target: a decision that is
not in the state would be made twice.
"""

from __future__ import annotations

from flexkv_py.core.blocks import RECORD_TYPES, Block, Copy, CopyState, DramCopy
from flexkv_py.core.frames import FRAME_NUMBER_BYTES
from flexkv_py.core.links import settle
from flexkv_py.core.messages import MoveKind, Priority, StartMove, Tier
from flexkv_py.core.placement import is_below, judge
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Transfer, TransferKind


def fill_dram(block: Block, frames: bytes) -> DramCopy:
    """A DRAM copy of which all chunks are being filled, in these frames."""
    assert block.dram is None
    copy = block.dram = DramCopy(block, frames)
    copy.filling = block.index.full_mask
    return copy


def free_frames(state: State, copy: Copy) -> None:
    """The copy's frames are named by nothing any more."""
    assert isinstance(copy, DramCopy)
    assert copy.readers == 0
    state.frames.give(copy.block.index.frame_pages, copy.packed(copy.present | copy.filling))


def free_chunks(state: State, copy: DramCopy, chunks: int) -> None:
    """Chunks (mask) of a READY copy leave DRAM alone; nothing reads them, and the block is whole below."""
    assert copy.state is CopyState.READY
    assert chunks & ~copy.present == 0
    if chunks == copy.present:
        evict(state, copy, "a running request left it cold")
        return
    state.frames.give(copy.block.index.frame_pages, copy.packed(chunks))
    copy.present &= ~chunks


def fail_fill(state: State, copy: DramCopy) -> None:
    """A DRAM copy comes to nothing; whoever reads it may go on reading the chunks that are there."""
    _give_up(state, copy)
    settle(state, copy.block)


def _give_up(state: State, copy: DramCopy) -> None:
    if copy.queue is not None:
        copy.queue.remove(copy)
    copy.state = CopyState.DROPPED
    copy.block.dram = None
    if copy.readers:
        state.dropped[copy] = None
    else:
        free_frames(state, copy)


def unpin(state: State, copy: Copy, *, cold: bool = False) -> None:
    """A reader less; the last one puts the copy back into its order, or lets it go."""
    assert copy.readers > 0
    copy.readers -= 1
    if copy.readers:
        return
    if copy.state is CopyState.DROPPED:
        if copy.tier is Tier.DRAM:
            del state.dropped[copy]
            free_frames(state, copy)
        else:
            drop_record(state, copy)
    elif copy.state is CopyState.READY:
        if copy.block.index.closed:
            evict(state, copy, "the namespace was reset")
        else:
            state.levels[copy.tier].put(copy, cold=cold or not copy.block.linked)


def evict(state: State, copy: Copy, why: str) -> None:
    """Drop a READY copy that nothing reads."""
    assert copy.state is CopyState.READY
    assert copy.readers == 0
    if copy.queue is not None:
        copy.queue.remove(copy)
    block = copy.block
    state.tell(block.key, "evict", copy.tier, why)
    state.count("evictions", state.levels[copy.tier].word)
    if copy.tier is Tier.DRAM:
        block.dram = None
        free_frames(state, copy)
        settle(state, block)
    else:
        lose_record(state, copy)


def lose_record(state: State, copy: Copy) -> None:
    """A copy below DRAM is no copy any more; its record is dropped once nothing reads it.

    It stays attached, DROPPED, until the tier has let go of it: an S3 object has one name, and a
    delete still on its way would otherwise take a new object with it.
    """
    assert copy.tier is not Tier.DRAM
    assert copy.state is CopyState.READY
    if copy.queue is not None:
        copy.queue.remove(copy)
    copy.state = CopyState.DROPPED
    _uncover(state, copy.block)
    if copy.readers == 0:
        drop_record(state, copy)
    settle(state, copy.block)


def forget_record(state: State, copy: Copy) -> None:
    """A READY copy whose record its tier has let go of by itself: nothing is left to drop, unless it is being read."""
    if copy.readers:
        lose_record(state, copy)
        return
    block = copy.block
    assert copy.queue is not None
    copy.queue.remove(copy)
    state.levels[copy.tier].used_bytes -= block.index.record_bytes
    copy.state = CopyState.DROPPED
    block.set_copy(copy.tier, None)
    _uncover(state, block)
    settle(state, block)


def _uncover(state: State, block: Block) -> None:
    """A copy that stood ready to go because of a record that was lost may not go any more; one in part must."""
    dram = block.dram
    if dram is not None and dram.state is CopyState.READY and dram.lacks and not is_below(block, Tier.DRAM):
        _give_up(state, dram)
    for copy in (block.dram, block.ssd):
        if copy is not None and copy.queue is state.levels[copy.tier].reclaimable and not judge(state, copy).may_go:
            copy.queue.remove(copy)
            state.levels[copy.tier].policy.cool(copy)


def drop_record(state: State, copy: Copy) -> None:
    """Hand the record of a DROPPED copy to its tier for dropping."""
    assert copy.state is CopyState.DROPPED
    level, block = state.levels[copy.tier], copy.block
    level.dropping_bytes += block.index.record_bytes
    transfer = state.new_transfer(Transfer(state.next_transfer_id(), TransferKind.DROP, block, copy))
    state.out.append(
        StartMove(transfer.id, MoveKind.DROP, copy.tier, block.name, copy.location, (), (), Priority.WRITE_BEHIND, 0)
    )


def promotion_may_start(state: State, block: Block, priority: Priority) -> bool:
    """Whether one more may be on its way up. Half of the limit is for loads: nothing else may keep them waiting."""
    return state.promotions.takes(block.index.record_bytes, share=1 if priority is Priority.LOAD else 2)


def start_promotion(
    state: State, block: Block, source: Copy, chunks: int, frames: bytes, priority: Priority, deadline_ns: int
) -> DramCopy:
    """Read chunks (mask) of a block from below into these frames."""
    copy = block.dram
    if copy is None:
        copy = block.dram = DramCopy(block, bytes(FRAME_NUMBER_BYTES * block.index.chunk_count))
    if copy.queue is not None:
        copy.queue.remove(copy)
    copy.state = CopyState.FILLING
    copy.fill(chunks, frames)
    start_reading(state, copy, source, priority, deadline_ns)
    return copy


def start_reading(state: State, copy: DramCopy, source: Copy, priority: Priority, deadline_ns: int) -> None:
    """Fill what a DRAM copy waits for from a record; also the second try from another tier."""
    assert copy.state is CopyState.FILLING
    assert copy.filling
    assert source.state is CopyState.READY
    block, spec = copy.block, copy.block.index.spec
    assert spec is not None
    state.pin(source)
    transfer = state.new_transfer(Transfer(state.next_transfer_id(), TransferKind.PROMOTE, block, copy, source))
    transfer.started_ns, transfer.deadline_ns, transfer.todo = state.now_ns, deadline_ns, copy.filling
    if priority is Priority.LOAD and copy.filling == block.index.full_mask:
        level = state.levels[source.tier]
        level.loading_bytes += block.index.record_bytes
        transfer.ahead_bytes = level.loading_bytes
    state.promotions.begin(block.index.record_bytes)
    kind, tier, place = MoveKind.PROMOTE, source.tier, source.location
    frames, cut, chunks = copy.frames, spec.chunk_bytes, copy.filling
    state.out.append(StartMove(transfer.id, kind, tier, block.name, place, frames, cut, priority, deadline_ns, chunks))


def start_demotion(state: State, block: Block, tier: Tier, priority: Priority) -> Copy:
    """Write a whole block from its READY DRAM copy into a lower tier."""
    source, level, spec = block.dram, state.levels[tier], block.index.spec
    assert source is not None
    assert source.state is CopyState.READY
    assert not source.lacks
    assert block.copy_in(tier) is None
    assert spec is not None
    state.pin(source)
    target = RECORD_TYPES[tier](block, 0)
    block.set_copy(tier, target)
    level.used_bytes += block.index.record_bytes
    level.wrote_ns = level.wrote_ns if level.writes.count else state.now_ns
    level.writes.begin(block.index.record_bytes)
    if not level.budget.admits(state.now_ns):
        state.count("over_budget", tier.name.lower())
    level.budget.draw(block.index.record_bytes, state.now_ns)
    transfer = Transfer(state.next_transfer_id(), TransferKind.DEMOTE, block, source, target, uses=block.uses)
    state.new_transfer(transfer)
    frames, cut = source.frames, spec.chunk_bytes
    state.out.append(StartMove(transfer.id, MoveKind.DEMOTE, tier, block.name, 0, frames, cut, priority, 0))
    return target
