"""Tenants as the simulator has them: whose namespaces are whose, quotas that change, and what no event may do to them.

Drawn with a chance of their own: worlds with one tenant and no quota stay as they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from flexkv_py.core.messages import (
    BlockName,
    BlocksFound,
    Event,
    NamespacesNamed,
    NamespaceSpec,
    QuotaChanged,
    SaveHints,
    SessionOpened,
    Tier,
)
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import NamespaceDigest
from flexkv_py.tenants.owner import NO_QUOTA, Marker, Quota
from flexkv_py.tenants.shelf import Tenant
from tests.sim.faults import MILLISECOND, SECOND
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

NAMES = ("ann", "bob", "", "unknown")
"""Any text is a name, also none, and also what the daemon calls those that have none."""

FOREVER_NS = 1 << 62
ENDED_NS_MAX = 4 * SECOND
"""The rest of the second a time ends in, and a few looks at what was still being filled then."""


class Tenants:
    """Who has which namespace, and what each may use; one for all lives of a world."""

    def __init__(self, seed: int, specs: list[NamespaceSpec]) -> None:
        self._chance = random.Random(f"tenants {seed}")
        self.several = self._chance.random() < 0.6
        self.tenants_max = self._chance.choice((1, 2, 1024)) if self.several else 1024
        self._largest = max(ALIGN_BYTES + spec.block_bytes for spec in specs)
        names = list(NAMES)
        self._chance.shuffle(names)
        self.names = {
            spec.digest: names[number % 3] if self.several else "default" for number, spec in enumerate(specs)
        }
        self.quotas = {name: self._draw() for name in dict.fromkeys(self.names.values()) if self.several}
        self._remembered = self._chance.random() < 0.6
        self._used: dict[tuple[str | Marker, Tier], int] = {}
        self._ends_ns: dict[BlockName, int] = {}  # of blocks saved in this life, when their time ends at the latest

    def begin_life(self, world: World) -> None:
        """The daemon starts: it may remember whose namespaces are whose."""
        self._used.clear()
        self._ends_ns.clear()
        if self._remembered:
            world.post(NamespacesNamed(list(self.names.items()), world.now_ns))

    def tenant(self, namespace: NamespaceDigest) -> str:
        return self.names[namespace]

    def hints(self, hints: SaveHints) -> SaveHints:
        """Further wishes for a save, now and then."""
        if self.several:
            hints.low_priority = not hints.high_priority and self._chance.random() < 0.1
            hints.retention_ns = self._chance.choice((0, 0, 0, 0, 5, 100, 3000)) * MILLISECOND
        return hints

    def saved(self, world: World, block: BlockName, hints: SaveHints) -> None:
        """A save has begun: nobody asked for the block to be kept longer than all saves of it together."""
        known = self._ends_ns.get(block, FOREVER_NS if world.is_ready(block) else 0)
        self._ends_ns[block] = max(known, world.now_ns + hints.retention_ns if hints.retention_ns else FOREVER_NS)

    def check_ended(self, world: World) -> None:
        """When nothing runs any more: what nobody asked to be kept for so long is in no tier."""
        for block, end_ns in self._ends_ns.items():
            if world.now_ns > end_ns + ENDED_NS_MAX and world.is_ready(block):
                raise Violation(f"its time ended at {end_ns / 1e9:.3f} s, and it is still a hit", block)

    def trouble(self, world: World) -> None:
        """Somebody changes a quota."""
        if self.several and self._chance.random() < 0.01:
            name = self._chance.choice(list(self.names.values()))
            self.quotas[name] = self._draw()
            world.post(QuotaChanged(name, self.quotas[name], world.now_ns))

    def calm(self, world: World) -> None:
        """What was promised to somebody must not wait for a quota that has room for nothing."""
        names = list(self.quotas)
        self.quotas.clear()  # for later lives too: they have the same configuration
        for name in names:
            world.post(QuotaChanged(name, NO_QUOTA, world.now_ns))

    def check(self, world: World, event: Event) -> None:
        """After every event: no tenant uses more than its quota, but for what it used before that was set."""
        if type(event) is BlocksFound:
            names = [BlockName(event.namespace, event.shard, found.key, found.parent) for found in event.blocks]
            self._ends_ns |= dict.fromkeys(names, FOREVER_NS)
        for owner in world.planner.state.tenants:
            for tier in world.config.tiers:
                self._check(owner, tier, grows=type(event) in (BlocksFound, SessionOpened, NamespacesNamed))

    def _check(self, owner: Tenant, tier: Tier, *, grows: bool) -> None:
        """`grows`: of what was found, and of whose it is, the planner can only take note."""
        shelf, at = owner.shelves[tier], (owner.name, tier)
        before = self._used.get(at, 0)
        self._used[at] = shelf.used_bytes
        if shelf.capacity_bytes != owner.quota.bytes_in(tier):
            raise Violation(f"{owner.called} has another quota of {tier.name} than its own")
        if not grows and shelf.capacity_bytes and shelf.used_bytes > max(before, shelf.capacity_bytes):
            uses = f"{owner.called} uses {shelf.used_bytes} bytes of {tier.name}"
            raise Violation(f"{uses}, and its quota is {shelf.capacity_bytes}")

    def _draw(self) -> Quota:
        chance, largest = self._chance, self._largest

        def room() -> int:
            return chance.choice((0, 0, 1, largest // 2, 3 * largest, 6 * largest, 20 * largest))

        return Quota(room(), room(), room(), chance.choice((0.25, 1.0, 1.0, 4.0)))
