"""What saves wish for their blocks beside where they go: how long they are kept, and when they leave.

Called by the planner's flows.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Block, CopyState, Rule
from flexkv_py.core.moves import evict
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State

EXPIRED_PER_EVENT_MAX = 64
EXPIRED_AGAIN_NS = 1_000_000_000
"""What is still read, written or held when its time has ended is looked at again after so long."""


def keep_for_both(state: State, block: Block, ticket: Ticket) -> None:
    """A block that is here already is saved again: whichever save asks for more has it."""
    state.retention.keep_longer(block, ticket.keep_until_ns)
    known, asked = block.rule, ticket.rule
    if asked.rank.value > known.rank.value:
        block.rule = Rule(known.skip_below, asked.rank)


def drop_expired(state: State) -> None:
    """Drop blocks whose time has ended from every tier; a bounded number per event."""
    for _ in range(EXPIRED_PER_EVENT_MAX):
        block = state.retention.take(state.now_ns)
        if block is None:
            return
        _expire(state, block)
    state.more = True


def _expire(state: State, block: Block) -> None:
    """What nothing reads goes now; the rest when it is looked at again. A lease or a demand holds the block as ever."""
    if not block.needed:
        for copy in reversed(block.copies()):  # a copy above that is there in part needs the one below to the end
            if copy.state is CopyState.READY and copy.readers == 0:
                state.count("expired", copy.tier.name.lower())
                evict(state, copy, "its retention time has ended")
    if block.index.blocks.get(block.key) is block:
        state.retention.keep(block, state.now_ns + EXPIRED_AGAIN_NS)
