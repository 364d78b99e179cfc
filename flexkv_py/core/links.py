"""Which blocks may be matched.

A block is *linked* when it is READY in some tier and its parent is linked. Losing a middle block
therefore orphans its descendants, and its return adopts them again. A change spreads to children in
bounded slices; while slices are left, match walks instead of bisecting (see `matching`).
"""

from __future__ import annotations

from flexkv_py.core.blocks import FILLING, Block
from flexkv_py.core.state import State
from flexkv_py.keys import ROOT

RELINK_SLICE_MAX = 256
ANCESTORS_MAX = 64


def settle(state: State, block: Block) -> None:
    """Call after any change to a block's copies: renews its link, forgets it when no copy is left."""
    if block.dram is None and block.ssd is None and block.s3 is None:
        _forget(state, block)
    else:
        relink(state, block)


def _forget(state: State, block: Block) -> None:
    if block.linked:
        block.linked = False
        _spread(state, block)
    index = block.index
    index.remove(block)
    if block.uses and not index.closed:
        state.history.remember(block.key, index.shard, block.uses, len(index.blocks))
    state.demotion_faults.pop(block, None)
    state.pushed_out.pop(block, None)
    if state.retention.seconds:
        state.retention.forget(block)


def relink(state: State, block: Block) -> None:
    """Renew one block's link; a change is queued for its children."""
    linked = block.ready
    if linked and block.parent != ROOT:
        parent = block.index.blocks.get(block.parent)
        linked = parent is not None and parent.linked
    if linked == block.linked:
        return
    block.linked = linked
    if not linked:
        _cool(block)
    _spread(state, block)


def _spread(state: State, block: Block) -> None:
    children = block.children
    if isinstance(children, dict):
        state.relink.extend(children)
    elif children is not None and (children.ready or children.linked):  # one that is FILLING has no link to change
        state.relink.append(children)


def relink_slice(state: State, blocks_max: int = RELINK_SLICE_MAX) -> None:
    """Spread changes a bounded step further."""
    queue = state.relink
    for _ in range(blocks_max):
        if not queue:
            return
        relink(state, queue.popleft())  # one that is gone meanwhile has no copy, so no link to change


def is_orphan(block: Block) -> bool:
    """Whether nothing under way will link it: copies of one save end in any order, children before their parents."""
    for _ in range(ANCESTORS_MAX):
        if block.linked or block.parent == ROOT:
            return False
        parent = block.index.blocks.get(block.parent)
        if parent is None:
            return True
        if not parent.ready:
            return all(copy.state is not FILLING for copy in parent.copies())
        block = parent
    return False  # as far as we look


def _cool(block: Block) -> None:
    """An orphan is the first victim: nobody can match it. One that stood ready to go still does."""
    for copy in (block.dram, block.ssd, block.s3):
        if copy is not None and copy.queue is not None:
            shelf, ready_to_go = block.index.shelves[copy.tier], copy.stands_ready
            copy.queue.remove(copy)
            if ready_to_go:
                shelf.spare(copy, first=True)
            else:
                shelf.cool(copy)
