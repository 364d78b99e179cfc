"""What saves wish for their blocks beside where they go: how long they are kept, and when they leave.

Called by the planner's flows.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Block, CopyState, DramCopy, Rule
from flexkv_py.core.moves import evict, fail_fill, lose_record
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State

EXPIRED_PER_EVENT_MAX = 64
EXPIRED_AGAIN_NS = 1_000_000_000
"""What is still being filled, or held, when its time has ended is looked at again after so long."""
ENDED = "its retention time has ended"


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
    """What is being filled goes when it is looked at again. A lease or a demand holds the block as ever."""
    for copy in () if block.needed else block.copies():
        if copy.state is not CopyState.READY:
            continue
        state.count("expired", copy.tier.name.lower())
        if copy.readers == 0:
            evict(state, copy, ENDED)
            continue
        state.tell(block.key, "evict", copy.tier, ENDED)  # those that read it read it to the end
        if isinstance(copy, DramCopy):
            fail_fill(state, copy)
        else:
            lose_record(state, copy)
    if block.index.blocks.get(block.key) is block:
        state.retention.keep(block, state.now_ns + EXPIRED_AGAIN_NS)
