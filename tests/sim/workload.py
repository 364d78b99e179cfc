"""What the clients do, and when: seeded operations, some of them in the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flexkv_py.core.messages import (
    BlockName,
    DrainStarted,
    FlushAsked,
    LeaseReleased,
    LoadAsked,
    MatchAnswered,
    MatchAsked,
    NamespaceReset,
    PrefetchAsked,
    SaveAsked,
    SaveHints,
    TicketCancelled,
    TicketKind,
    Tier,
)
from flexkv_py.keys import ROOT, BlockKey
from tests.sim.clients import Client, Lease, Ticket
from tests.sim.faults import MICROSECOND, MILLISECOND, SECOND
from tests.sim.world import World

SESSIONS_MAX = 6
DAEMON = 0
"""The session number of the daemon itself."""


class Workload:
    """Draws one operation after another until told to stop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._gap_ns = self._chance.choice((30, 150, 600)) * MICROSECOND
        self._stopped = False
        self._daemon = Client(DAEMON, world.namespaces[0], 0)
        self._operations: list[tuple[float, Callable[[Client], None]]] = [
            (30, self._save),
            (25, self._match_and_load),
            (12, self._load),
            (6, self._prefetch),
            (8, self._match_and_hold),
            (6, self._check_lease),
            (5, self._cancel),
            (4, self._release),
            (1.5, self._flush),
            (self._chance.choice((0.0, 0.5, 2.0)), self._reset),
            (2, self._close),
        ]
        world.rows.save = world.recompute = self._recompute
        world.after(0, self._next, outlives=True)

    def stop(self) -> None:
        self._stopped = True

    def _next(self) -> None:
        if self._stopped:
            return
        world, chance = self._world, self._chance
        pause = int(chance.expovariate(1 / self._gap_ns))
        if chance.random() < 0.003:
            pause = chance.choice((1, 7)) * SECOND
            for late in range(4):
                world.after(pause + late * MICROSECOND, self._load_in_a_hurry)
        world.after(pause, self._next, outlives=True)
        self._trouble()
        clients = list(world.clients.values())
        if len(clients) < 2 or (len(clients) < SESSIONS_MAX and chance.random() < 0.05):
            world.open_session(chance.choice(world.namespaces), chance.choice((0, 0, 1)))
            return
        operation = chance.choices(
            [operation for _, operation in self._operations], [weight for weight, _ in self._operations]
        )[0]
        client = chance.choice(clients)
        if client.alive:
            operation(client)

    # ------------------------------------------------------------------ trouble

    def _trouble(self) -> None:
        """What goes wrong of itself: tiers, records, the whole daemon."""
        world, chance, faults = self._world, self._chance, self._world.faults
        world.tenants.trouble(world)
        if chance.random() < faults.down_rate and world.stores:
            tier = chance.choice(list(world.stores))
            world.set_tier(tier, up=False)
            world.after(chance.randint(1, 300) * MILLISECOND, partial(world.set_tier, tier, up=True), outlives=True)
        if chance.random() < faults.damage_rate and world.stores:
            for block in world.stores[chance.choice(list(world.stores))].damage(chance):
                world.oracle.hurt(block)
        if chance.random() < faults.reclaim_rate and world.stores:
            tier = chance.choice(list(world.stores))
            if tier not in world.recovering:  # what a store has yet to tell of stays
                world.reclaim(tier)
        if chance.random() < faults.others_rate and Tier.S3 in world.stores and not world.is_down(Tier.S3):
            space = chance.choice(world.namespaces)
            keys = chance.choice(space.chains)
            at = chance.randrange(len(keys))
            shard = chance.choice((0, 1))
            world.another_daemon_writes(BlockName(space.digest, shard, keys[at], space.parent(keys, at)))
        if world.recovering and chance.random() < 0.06 and world.clients:
            client = chance.choice(list(world.clients.values()))
            if client.alive:
                self._reset(client)  # while not all is known that is to be forgotten
        if chance.random() < faults.crash_rate:
            if chance.random() < 0.3:
                world.post(DrainStarted(world.now_ns))
                world.after(chance.randint(0, 20) * MILLISECOND, world.crash)
            else:
                world.crash()

    # --------------------------------------------------------------- operations

    def _keys(self, client: Client, *, from_start: float) -> tuple[list[BlockKey], BlockKey]:
        """A stretch of some chain and the parent of its first key."""
        chance, namespace = self._chance, client.namespace
        chain = chance.choice(namespace.chains)
        start = 0 if chance.random() < from_start else chance.randrange(len(chain))
        end = len(chain) if chance.random() < 0.4 else chance.randint(start + 1, len(chain))
        return list(chain[start:end]), namespace.parent(chain, start)

    def _deadline(self, always: bool) -> int:
        if not always and self._chance.random() < 0.3:
            return 0
        return self._world.now_ns + self._chance.choice((1, 10, 100, 2000)) * MILLISECOND

    def _open(self, client: Client, kind: TicketKind, keys: list[BlockKey], ack: Tier = Tier.DRAM) -> Ticket | None:
        """A ticket with pages of its own, if the worker has enough of them."""
        world = self._world
        count = 0 if kind in (TicketKind.PREFETCH, TicketKind.FLUSH) else len(keys)
        if len(client.free) < count:
            return None
        slots = [client.free.pop() for _ in range(count)]
        ticket = Ticket(world.next_number(), client, kind, keys, slots, ack, world.oracle.now())
        world.tickets[ticket.number] = client.tickets[ticket.number] = ticket
        return ticket

    def _save(self, client: Client) -> None:
        keys, parent = self._keys(client, from_start=0.8)
        ack = self._chance.choice((Tier.DRAM, Tier.DRAM, Tier.DRAM, Tier.SSD, Tier.S3))
        self._save_keys(client, keys, parent, ack)

    def _save_keys(self, client: Client, keys: list[BlockKey], parent: BlockKey, ack: Tier) -> None:
        world, chance = self._world, self._chance
        if not client.alive:
            return
        ticket = self._open(client, TicketKind.SAVE, keys, ack)
        if ticket is None:
            return
        for key, slot in zip(keys, ticket.slots, strict=True):
            client.slots[slot] = world.right(world.name(client, key))
        hints = world.tenants.hints(SaveHints(chance.random() < 0.05, chance.random() < 0.1))
        for key in keys:
            world.tenants.saved(world, world.name(client, key), hints)
        deadline = self._deadline(always=True)
        world.post(SaveAsked(client.number, ticket.number, keys, parent, deadline, ack, hints, world.now_ns))

    def _recompute(self, client: Client, keys: list[BlockKey]) -> None:
        """A chain from its start, as somebody who lost it would save it again."""
        if not self._stopped:
            self._save_keys(client, keys, ROOT, Tier.DRAM)

    def load(self, client: Client, keys: list[BlockKey], deadline_ns: int = 0) -> Ticket | None:
        """Ask for these keys; None when the worker has no pages left for them."""
        world = self._world
        ticket = self._open(client, TicketKind.LOAD, keys)
        if ticket is None:
            return None
        ticket.deadline_ns = deadline_ns
        for slot in ticket.slots:
            client.scribble(slot)
        world.post(LoadAsked(client.number, ticket.number, keys, deadline_ns, world.now_ns))
        return ticket

    def _load(self, client: Client) -> None:
        self.load(client, self._keys(client, from_start=0.9)[0], self._deadline(always=False))

    def _load_in_a_hurry(self) -> None:
        """What somebody who comes back after a pause asks for, with next to no time."""
        clients = [client for client in self._world.clients.values() if client.alive]
        if clients and not self._stopped:
            client = self._chance.choice(clients)
            self.load(client, self._keys(client, from_start=0.9)[0], self._world.now_ns + MILLISECOND // 4)

    def _prefetch(self, client: Client) -> None:
        world = self._world
        keys, _ = self._keys(client, from_start=0.9)
        ticket = self._open(client, TicketKind.PREFETCH, keys)
        assert ticket is not None
        deadline = self._deadline(always=False)
        world.post(PrefetchAsked(client.number, ticket.number, keys, deadline, Tier.DRAM, world.now_ns))

    def _ask(
        self, client: Client, keys: list[BlockKey], shards: tuple[int, ...], hold_ns: int, then: Callable[..., None]
    ) -> None:
        world = self._world
        request = world.next_number()
        world.asked[request] = (client, keys, shards or (client.shard,), then)
        world.post(MatchAsked(client.number, request, keys, shards, hold_ns, world.now_ns))

    def _match_and_load(self, client: Client) -> None:
        keys, _ = self._keys(client, from_start=1.0)

        def then(answer: MatchAnswered) -> None:
            if answer.length and client.alive:
                delay = self._chance.choice((0, 0, 50, 2000)) * MICROSECOND
                self._world.after(delay, self._load_if_alive, client, keys[: answer.length])

        self._ask(client, keys, self._chance.choice(((), (), (0, 1))), 0, then)

    def _load_if_alive(self, client: Client, keys: list[BlockKey]) -> None:
        if client.alive and client.number in self._world.clients:
            self.load(client, keys, self._deadline(always=False))

    def _match_and_hold(self, client: Client) -> None:
        world = self._world
        keys, _ = self._keys(client, from_start=1.0)
        shards = self._chance.choice(((), (), (0, 1)))
        hold_ns = self._chance.choice((1, 50, 500)) * MILLISECOND
        until_ns = world.now_ns + hold_ns

        def then(answer: MatchAnswered) -> None:
            if answer.lease:
                named = shards or (client.shard,)
                held = keys[: answer.length]
                lease = Lease(answer.lease, client, held, named, until_ns, world.oracle.now())
                client.leases[answer.lease] = lease
                for _ in range(2):
                    world.after(self._chance.randrange(hold_ns), self._check, lease)

        self._ask(client, keys, shards, hold_ns, then)

    def _check(self, lease: Lease) -> None:
        """What is leased must be matched as long as the lease lives."""
        client = lease.client
        if client.alive and lease.number in client.leases and self._world.now_ns < lease.until_ns:
            self._ask(client, lease.keys, lease.shards, 0, lambda answer: self._world.oracle.check_lease(lease, answer))

    def _check_lease(self, client: Client) -> None:
        for lease in [lease for lease in client.leases.values() if lease.until_ns <= self._world.now_ns]:
            del client.leases[lease.number]
        if client.leases:
            self._check(self._chance.choice(list(client.leases.values())))

    def _cancel(self, client: Client) -> None:
        world = self._world
        if client.tickets:
            ticket = self._chance.choice(list(client.tickets.values()))
            world.post(TicketCancelled(client.number, ticket.number, world.now_ns))

    def _release(self, client: Client) -> None:
        world = self._world
        lease = self._chance.choice(list(client.leases)) if client.leases and self._chance.random() < 0.9 else 1 << 40
        client.leases.pop(lease, None)
        request = world.next_number()
        world.requests[request] = (client, lambda: None)
        world.post(LeaseReleased(client.number, request, lease, world.now_ns))

    def _flush(self, client: Client) -> None:
        world, chance = self._world, self._chance
        if chance.random() < 0.3:
            client = self._daemon
        ticket = self._open(client, TicketKind.FLUSH, [])
        assert ticket is not None
        namespace = None if client is self._daemon else client.namespace.digest
        tier = chance.choice((Tier.SSD, Tier.S3))
        deadline = self._deadline(always=False)
        world.post(FlushAsked(client.number, ticket.number, namespace, tier, deadline, world.now_ns))

    def _reset(self, client: Client) -> None:
        world, namespace = self._world, client.namespace.digest
        request = world.next_number()
        asked = world.oracle.now()
        world.oracle.reset_asked(namespace)
        world.requests[request] = (client, lambda: world.oracle.reset_answered(namespace, asked))
        world.post(NamespaceReset(client.number, request, namespace, world.now_ns))
        if self._chance.random() < 0.5:  # the same blocks at once again, as deep as they go
            for delay in (0, 200, 1000):
                keys, parent = self._keys(client, from_start=1.0)
                world.after(delay * MICROSECOND, self._save_keys, client, keys, parent, world.config.tiers[-1])

    def _close(self, client: Client) -> None:
        self._world.close_session(client)
