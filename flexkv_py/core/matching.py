"""The longest usable prefix.

Links make "may be matched" monotone along a chain, so bisection finds the end: about ten look-ups for
512 keys. The end of the run is then verified against the chain itself. Where links may be stale (a
change is still spreading, or a tier is down) the prefix is walked instead. Either way a length that has
become stale costs a shorter load, said early, never wrong bytes: a load looks at every key again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from flexkv_py.core.blocks import READY, Block, Index
from flexkv_py.core.messages import DRAM, S3, MatchAnswered, MatchAsked, Tier, TierRun
from flexkv_py.core.placement import source_below
from flexkv_py.core.sessions import Lease, Session
from flexkv_py.core.state import State
from flexkv_py.core.tickets import refuse
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import ROOT, BlockKey

HIT, MISS = ("matched_keys", "hit"), ("matched_keys", "miss")


def on_match(state: State, event: MatchAsked) -> None:
    """Answer at once; with `hold_ns`, lease every block of the answer in every shard."""
    session = state.sessions[event.session]
    shards = event.shards or (session.shard,)
    indexes = [state.indexes.get((session.spec.digest, shard)) for shard in shards]
    down = [level for level in state.below if not level.up]
    walk = bool(state.relink or down) or event.hold_ns > 0
    length = len(event.keys)
    for index in indexes:
        keys = event.keys[:length] if length < len(event.keys) else event.keys
        length = 0 if index is None else _walk(state, index, keys) if walk else _bisect(index, keys)
        if length == 0:
            break
    present = [index for index in indexes if index is not None]
    runs = _tier_runs(state, present, event.keys, length, exact=walk)
    for counters in (state.counters, session.owner.counters):
        counters[HIT] = counters.get(HIT, 0) + length
        counters[MISS] = counters.get(MISS, 0) + len(event.keys) - length
    lease = 0
    if event.hold_ns and length:
        if len(session.leases) >= state.config.leases_per_session_max:
            limit = state.config.leases_per_session_max
            why = f"this session holds {limit} leases (leases_per_session_max): release some first"
            refuse(state, event.session, event.request, 0, ErrorCode.LIMIT_EXCEEDED, why)
            return
        lease = _hold(state, session, present, event.keys[:length], event.hold_ns)
    state.out.append(MatchAnswered(event.session, event.request, length, runs, lease))


def _bisect(index: Index, keys: Sequence[BlockKey]) -> int:
    blocks = index.blocks

    def ends(key: BlockKey) -> bool:
        block = blocks.get(key)
        return block is None or not block.linked

    length = len(keys) if not ends(keys[-1]) else bisect_left(keys, True, key=ends)  # usually everything is there
    while length and not _chained(index, keys, length - 1):
        length -= 1
    return length


def _chained(index: Index, keys: Sequence[BlockKey], at: int) -> bool:
    """Whether the block at `at` is linked and hangs on the key before it."""
    block = index.blocks.get(keys[at])
    if block is None or not block.linked:
        return False
    return at == 0 or block.parent == keys[at - 1]


def _walk(state: State, index: Index, keys: Sequence[BlockKey]) -> int:
    """Exact whatever is spreading: every block READY in a tier that is up, each hanging on the last."""
    parent: BlockKey | None = None
    for at in range(len(keys)):
        key = keys[at]
        block = index.blocks.get(key)
        if block is None or slowest_tier(state, block) is None:
            return at
        if block.parent != parent and not (parent is None and (block.parent == ROOT or block.linked)):
            return at
        parent = key
    return len(keys)


def slowest_tier(state: State, block: Block) -> Tier | None:
    """The tier a load would have to wait for; None when the block is READY in no tier that is up."""
    if block.dram is not None and block.dram.state is READY and not block.dram.lacks:
        return DRAM
    source = source_below(state, block)
    return None if source is None else source.tier


def _tier_runs(
    state: State, indexes: list[Index], keys: Sequence[BlockKey], length: int, *, exact: bool
) -> list[TierRun]:
    """Tiers along the prefix.

    Exact when the prefix was walked anyway. Otherwise found by bisection, which takes for granted that
    each tier holds one stretch of the prefix (blocks are used and evicted in order); then it is advice.
    """

    def tier_at(position: int) -> Tier:
        key = keys[position]
        tiers = [slowest_tier(state, index.blocks[key]) for index in indexes if key in index.blocks]
        return max((tier for tier in tiers if tier is not None), default=S3)

    runs: list[TierRun] = []
    at = 0
    while at < length:
        tier = tier_at(at)
        if exact:
            end = next((later for later in range(at + 1, length) if tier_at(later) is not tier), length)
        elif tier_at(length - 1) is tier:
            end = length
        else:
            end = bisect_left(range(length), True, lo=at + 1, key=lambda later, tier=tier: tier_at(later) is not tier)  # type: ignore[misc]
        runs.append(TierRun(tier, end - at))
        at = end
    return runs


def _hold(state: State, session: Session, indexes: list[Index], keys: Sequence[BlockKey], hold_ns: int) -> int:
    blocks = [index.blocks[key] for index in indexes for key in keys]
    for block in blocks:
        block.holds += 1
    lease = Lease(next(state.numbers), session.id, blocks)
    session.leases[lease.id] = state.leases[lease.id] = lease
    state.wake_at(state.now_ns + min(hold_ns, state.config.hold_ns_max), "lease", lease.id)
    return lease.id


def let_go(state: State, lease: Lease) -> None:
    """A lease ends: released, expired, or its session is gone."""
    del state.sessions[lease.session].leases[lease.id]
    del state.leases[lease.id]
    for block in lease.blocks:
        block.holds -= 1
        assert block.holds >= 0
    state.touch_tail_first(lease.blocks)
