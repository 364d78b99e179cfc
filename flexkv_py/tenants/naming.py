"""Whose a namespace is, and what changes when that becomes known, or a quota does.

Blocks of a namespace that nobody has named yet are the unknown owner's. When a session names it, what they use is
the tenant's at once, and their places in its order follow in bounded slices. Called by the planner.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Copy, Index
from flexkv_py.core.messages import MoveKind, NamespacesNamed, QuotaChanged
from flexkv_py.core.state import State
from flexkv_py.keys import NamespaceDigest
from flexkv_py.tenants.owner import NO_QUOTA, Marker
from flexkv_py.tenants.shelf import Tenant

MOVED_PER_EVENT_MAX = 256


def on_named(state: State, event: NamespacesNamed) -> None:
    """Earlier lives knew whose these namespaces are."""
    for namespace, tenant in event.names:
        if state.tenants.find(Marker.UNKNOWN) is None:
            state.tenants.learn(namespace, tenant)
        else:
            name(state, namespace, tenant)


def name(state: State, namespace: NamespaceDigest, tenant: str) -> Tenant:
    """A namespace is this tenant's; so is what was found of it before that was known."""
    state.tenants.learn(namespace, tenant)
    owner, unknown = state.tenants.owner_of(namespace), state.tenants.find(Marker.UNKNOWN)
    if unknown is not None:
        for index in [index for index in state.indexes.values() if index.namespace == namespace]:
            if index.owner is unknown:
                _give(state, index, owner)
    return owner


def _give(state: State, index: Index, owner: Tenant) -> None:
    """What an index uses is another owner's from now on."""
    dropping = [row.copy.tier for row in state.transfers.values() if _drops(row.kind, row.copy, index)]
    for old, new in zip(index.shelves, owner.shelves, strict=True):
        new.used_bytes += index.used_bytes[new.tier]
        old.used_bytes -= index.used_bytes[new.tier]
        new.grown()
        dropping_bytes = dropping.count(new.tier) * index.record_bytes
        new.dropping_bytes += dropping_bytes
        old.dropping_bytes -= dropping_bytes
    index.owner, index.shelves = owner, owner.shelves
    state.moving.extend(index.blocks.values())


def _drops(kind: object, copy: Copy, index: Index) -> bool:
    return kind is MoveKind.DROP and copy.block.index is index


def move_slice(state: State) -> None:
    """Have the next copies stand where their owner is asked for room."""
    for _ in range(min(len(state.moving), MOVED_PER_EVENT_MAX)):
        block = state.moving.popleft()
        for copy in block.copies():
            shelf = block.index.shelves[copy.tier]
            if copy.queue is not None and all(copy.queue is not mine for mine in shelf.lists):
                ready_to_go = copy.stands_ready
                copy.queue.remove(copy)
                copy.mark = 0
                (shelf.spare if ready_to_go else shelf.add if block.linked else shelf.cool)(copy)


def on_quota_changed(state: State, event: QuotaChanged) -> None:
    """From now on; what is above it leaves in bounded slices, and nothing is added meanwhile."""
    state.tenants.quotas[event.tenant] = event.quota
    owner = state.tenants.find(event.tenant)
    if owner is not None:
        owner.quota = event.quota
        for tier in state.levels:
            owner.shelves[tier].allow(event.quota.bytes_in(tier), event.quota.weight)
    if event.quota == NO_QUOTA:
        del state.tenants.quotas[event.tenant]
        if owner is not None:
            forget_idle(state)
    state.more = True


def forget_idle(state: State) -> None:
    """Indexes nobody uses go, and tenants without session, block or quota, or all that ever came would count."""
    wanted = {(session.spec.digest, session.shard) for session in state.sessions.values()}
    for at in [at for at, index in state.indexes.items() if not (index.blocks or index.attached or at in wanted)]:
        del state.indexes[at]
    owning = {index.owner for index in state.indexes.values()}
    for reset in state.resets:  # a recovery may still find blocks for these
        owning.update(index.owner for index in reset.indexes)
    for owner in list(state.tenants):
        if owner in owning or owner.sessions or owner.quota != NO_QUOTA:
            continue
        if any(shelf.used_bytes or shelf.count for shelf in owner.shelves):
            continue
        state.tenants.forget(owner)
        for tier, level in state.levels.items():
            level.ranking.leave(owner.shelves[tier])
            state.tended.pop(owner.shelves[tier], None)
