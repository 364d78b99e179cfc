"""Starting and ending single moves: what each reserves, and what it gives back.

The call that emits an instruction also marks the frames, the reader and the target: a decision that is
not in the state would be made twice.
"""

from __future__ import annotations

from flexkv_py.core.blocks import DROPPED, FILLING, READY, RECORD_TYPES, Block, Copy, DramCopy
from flexkv_py.core.links import is_orphan, settle
from flexkv_py.core.messages import DRAM, MoveKind, Priority, StartMove, Tier
from flexkv_py.core.placement import is_below, judge
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Transfer
from flexkv_py.geometry import ALIGN_BYTES


def free_frames(state: State, copy: Copy) -> None:
    """The copy's frames are named by nothing any more."""
    assert isinstance(copy, DramCopy)
    assert copy.readers == 0
    give_frames(state, copy, copy.present | copy.filling)


def give_frames(state: State, copy: DramCopy, chunks: int) -> None:
    """Frames of these chunks (mask) of a copy are free."""
    index = copy.block.index
    state.frames.give(index.frame_pages, copy.packed(chunks))
    index.charge(DRAM, -chunks.bit_count() * index.frame_pages * ALIGN_BYTES)


def free_chunks(state: State, copy: DramCopy, chunks: int) -> None:
    """Chunks (mask) of a READY copy leave DRAM alone; nothing reads them, and the block is whole below."""
    assert copy.state is READY
    assert chunks & ~copy.present == 0
    if chunks == copy.present:
        evict(state, copy, "a running request left it cold")
        return
    give_frames(state, copy, chunks)
    copy.present &= ~chunks


def fail_fill(state: State, copy: DramCopy) -> None:
    """A DRAM copy comes to nothing; whoever reads it may go on reading the chunks that are there."""
    _give_up(state, copy)
    settle(state, copy.block)


def _give_up(state: State, copy: DramCopy) -> None:
    if copy.queue is not None:
        copy.queue.remove(copy)
    copy.state = DROPPED
    forget_pin(state, copy)
    copy.block.dram = None
    if copy.readers:
        state.dropped[copy] = None
    else:
        free_frames(state, copy)


def unpin(state: State, copy: Copy, *, cold: bool = False) -> None:
    """A reader less; the last one puts the copy back into its order, or lets it go.

    One that is still cold, and covered below, stands ready to go.
    """
    assert copy.readers > 0
    copy.readers -= 1
    if copy.readers:
        return
    if copy.state is DROPPED:
        if copy.tier is DRAM:
            del state.dropped[copy]
            free_frames(state, copy)
        else:
            drop_record(state, copy)
    elif copy.state is READY:
        if copy.block.index.closed:
            evict(state, copy, "the namespace was reset")
        elif cold and is_below(copy.block, copy.tier):
            copy.block.index.shelves[copy.tier].spare(copy)
        else:
            shelf = copy.block.index.shelves[copy.tier]
            (shelf.cool if cold or is_orphan(copy.block) else shelf.add)(copy)


def forget_pin(state: State, copy: Copy) -> None:
    """The operator's pin, if there is one, does not hold a copy that must go."""
    if state.pinned.pop(copy, 0):
        copy.readers -= 1


def evict(state: State, copy: Copy, why: str) -> None:
    """Drop a READY copy that nothing reads."""
    assert copy.state is READY
    assert copy.readers == 0
    if copy.queue is not None:
        copy.queue.remove(copy)
    block = copy.block
    state.tell(block.key, "evict", copy.tier, why)
    state.count("evictions", state.levels[copy.tier].word)
    block.index.owner.evictions[copy.tier] += 1
    if copy.tier is DRAM:
        block.dram = None
        free_frames(state, copy)
        settle(state, block)
    else:
        lose_record(state, copy)


def lose_record(state: State, copy: Copy, *, told_by_tier: bool = False) -> None:
    """A READY copy below DRAM is no copy any more; its record is dropped once nothing reads it.

    It stays attached, DROPPED, until the tier has let go of it: an S3 object has one name, and a delete still on its
    way would otherwise take a new object with it. If the tier told us so, and nothing reads it, it has.
    """
    assert copy.tier is not DRAM
    assert copy.state is READY
    if copy.queue is not None:
        copy.queue.remove(copy)
    copy.state = DROPPED
    forget_pin(state, copy)
    _uncover(state, copy.block)
    if copy.readers == 0 and told_by_tier:
        detach(state, copy)
    elif copy.readers == 0:
        drop_record(state, copy)
    settle(state, copy.block)


def detach(state: State, copy: Copy) -> None:
    """A copy below DRAM whose record is not there."""
    copy.block.set_copy(copy.tier, None)
    state.levels[copy.tier].charge(copy.block.index, -copy.block.index.record_bytes)


def _uncover(state: State, block: Block) -> None:
    """A copy that stood ready to go because of a record that was lost may not go any more; one in part must."""
    dram = block.dram
    if dram is not None and dram.state is READY and dram.lacks and not is_below(block, DRAM):
        _give_up(state, dram)
    for copy in (block.dram, block.ssd):
        if copy is not None and copy.queue is not None and copy.queue.spare and not judge(state, copy).may_go:
            copy.queue.remove(copy)
            block.index.shelves[copy.tier].cool(copy)


def _order(
    state: State,
    transfer: Transfer,
    record: Copy,
    frames: tuple[int, ...],
    priority: Priority,
    deadline_ns: int = 0,
    chunks: int = 0,
) -> None:
    """Enter a move of this record into the ledger, and have its tier begin it."""
    kind, block, spec = state.begin(transfer).kind, record.block, record.block.index.spec
    assert isinstance(kind, MoveKind)
    assert spec is not None or not frames
    cut = spec.chunk_bytes if spec is not None and frames else ()
    tier, place = record.tier, record.location
    state.out.append(StartMove(transfer.id, kind, tier, block.name, place, frames, cut, priority, deadline_ns, chunks))


def drop_record(state: State, copy: Copy) -> None:
    """Hand the record of a DROPPED copy to its tier for dropping."""
    assert copy.state is DROPPED
    state.levels[copy.tier].dropping(copy.block.index, copy.block.index.record_bytes)
    _order(state, Transfer(MoveKind.DROP, copy), copy, (), Priority.WRITE_BEHIND)


def start_reading(state: State, copy: DramCopy, source: Copy, priority: Priority, deadline_ns: int) -> None:
    """Fill what a DRAM copy waits for from a record; also the second try from another tier."""
    assert copy.state is FILLING
    assert copy.filling
    assert source.state is READY
    record_bytes = copy.block.index.record_bytes
    state.pin(source)
    transfer = Transfer(MoveKind.PROMOTE, copy, source, started_ns=state.now_ns, deadline_ns=deadline_ns)
    transfer.todo = copy.filling
    if priority is Priority.LOAD and not copy.present:
        level = state.levels[source.tier]
        level.loading_bytes += record_bytes
        transfer.ahead_bytes = level.loading_bytes
    state.promotions.begin(record_bytes)
    _order(state, transfer, source, copy.frames, priority, deadline_ns, copy.filling)


def start_demotion(state: State, block: Block, tier: Tier, priority: Priority) -> Copy:
    """Write a whole block from its READY DRAM copy into a lower tier."""
    source, level, record_bytes = block.dram, state.levels[tier], block.index.record_bytes
    assert source is not None
    assert source.state is READY
    assert not source.lacks
    assert block.copy_in(tier) is None
    state.pin(source)
    target = RECORD_TYPES[tier](block, 0)
    block.set_copy(tier, target)
    level.charge(block.index, record_bytes)
    level.wrote_ns = level.wrote_ns if level.writes.count else state.now_ns
    level.writes.begin(record_bytes)
    if not level.budget.admits(state.now_ns):
        state.count("over_budget", level.word)
    level.budget.draw(record_bytes, state.now_ns)
    _order(state, Transfer(MoveKind.DEMOTE, source, target, uses=block.uses), target, source.frames, priority)
    return target
