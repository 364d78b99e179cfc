"""What an operator wishes of a planner at work, in the worst moments, and whether it is granted as promised.

Draws pins, evictions, demotions, prefetches, other rules, drains; reads copies again and finds them damaged; asks for
explanations and matches at once what they are about. Knows what is pinned, and which question or operation is still
to be answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexkv_py.core.blocks import Copy, CopyState
from flexkv_py.core.messages import BlockName, DrainStarted, Instruction, MatchAnswered, MatchAsked, Tier
from flexkv_py.core.policies import POLICIES
from flexkv_py.damage import DamageFound
from flexkv_py.errors import ErrorCode
from flexkv_py.explain import explain_in
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.operating.messages import (
    Choice,
    DrainEnded,
    OperationAdvanced,
    OperationAsked,
    OperationCancelled,
    OperationEnded,
    OperationKind,
    PinAnswered,
    PinAsked,
    Rules,
    RulesChanged,
    UnpinAnswered,
    UnpinAsked,
    WishRefused,
)
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.tenants.keeping import ENDED
from tests.sim.clients import Client
from tests.sim.faults import MILLISECOND
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

FAIR_REFUSALS = (ErrorCode.LIMIT_EXCEEDED, ErrorCode.TIER_UNAVAILABLE, ErrorCode.DRAINING)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A copy that must stay until then, unless a fault or a reset takes it."""

    until_ns: int
    moment: int


class Wishes:
    """The operator of one life of the daemon; with a gap of 0 there is none."""

    def __init__(self, world: World, chance: random.Random, gap_ns: int) -> None:
        self._world, self._chance, self._gap_ns = world, chance, gap_ns
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._operations: dict[int, OperationAsked] = {}
        self._pins: dict[tuple[BlockName, Tier], Pinned] = {}
        self._drawn: list[tuple[float, Callable[[], None]]] = [
            (6, self._pin),
            (2, self._unpin),
            (6, self._operate),
            (2, self._cancel),
            (1, self._change_rules),
            (0.3, self._drain),
            (8, self._ask_why),
            (4 if world.faults.damage_rate else 0, self._find_damage),
        ]
        if gap_ns:
            world.after(gap_ns, self._next)

    def answers(self) -> dict[type[Instruction], Callable[[Any], None]]:
        """Who hears what."""
        return {
            PinAnswered: lambda answer: self._asked.pop(answer.request)(answer),
            UnpinAnswered: lambda answer: self._asked.pop(answer.request)(answer),
            OperationAdvanced: self._advanced,
            OperationEnded: self._ended,
            WishRefused: self._refused,
        }

    def stop(self) -> None:
        self._gap_ns = 0

    def _next(self) -> None:
        if not self._gap_ns:
            return
        self._world.after(int(self._chance.expovariate(1 / self._gap_ns)), self._next)
        wish = self._chance.choices([wish for _, wish in self._drawn], [weight for weight, _ in self._drawn])[0]
        wish()
        self.check()

    def _keys(self) -> list[BlockKey]:
        """A stretch of some chain of some namespace, or single keys of several."""
        chance, spaces = self._chance, self._world.namespaces
        chain = chance.choice(chance.choice(spaces).chains)
        if chance.random() < 0.7:
            start = chance.randrange(len(chain))
            return list(chain[start : chance.randint(start + 1, len(chain))])
        keys = {key: None for space in spaces for each in space.chains for key in each}
        return chance.sample(list(keys), min(5, len(keys)))

    # -------------------------------------------------------------------- pins

    def _pin(self) -> None:
        world, number, keys = self._world, self._world.next_number(), self._keys()
        ttl_ns = self._chance.choice((1, 20, 500)) * MILLISECOND
        until_ns = world.now_ns + ttl_ns

        def pinned(answer: PinAnswered) -> None:
            moment = world.oracle.now()
            for block, tier in self._ready(keys):
                self._pins[block, tier] = Pinned(until_ns, moment)
            if sorted(answer.missing) != sorted({*keys} - {block.key for block, _ in self._ready(keys)}):
                raise Violation(f"of {len(keys)} keys {len(answer.missing)} are said to be missing, others are")

        self._asked[number] = pinned
        world.post(PinAsked(number, keys, ttl_ns, world.now_ns))

    def _ready(self, keys: list[BlockKey]) -> list[tuple[BlockName, Tier]]:
        """Every copy these blocks have now."""
        indexes = self._world.planner.state.indexes.values()
        blocks = [index.blocks[key] for key in keys for index in indexes if key in index.blocks]
        return [(block.name, copy.tier) for block in blocks for copy in block.copies() if copy.state is CopyState.READY]

    def _unpin(self) -> None:
        world, number, keys = self._world, self._world.next_number(), self._keys()
        for at in [at for at in self._pins if at[0].key in keys]:
            del self._pins[at]
        self._asked[number] = lambda _answer: None
        world.post(UnpinAsked(number, keys, world.now_ns))

    def check(self) -> None:
        """What is pinned is there, unless a fault or a reset took it since."""
        world = self._world
        for (name, tier), pinned in list(self._pins.items()):
            lost = world.oracle.was_hurt(name, pinned.moment) or world.oracle.was_reset(name.namespace, pinned.moment)
            if pinned.until_ns <= world.now_ns or lost:
                del self._pins[name, tier]
                continue
            copy = self._copy(name, tier)
            if (copy is None or copy.state is CopyState.DROPPED) and not self._retention_ended(name):
                raise Violation(f"a pinned copy left {tier.name} before its time", name)

    def _copy(self, name: BlockName, tier: Tier) -> Copy | None:
        index = self._world.planner.state.indexes.get((name.namespace, name.shard))
        block = None if index is None else index.blocks.get(name.key)
        return None if block is None else block.copy_in(tier)

    def _retention_ended(self, name: BlockName) -> bool:
        """Whether the block went because whoever saved it said so: that counts more than a pin."""
        return any(event.what == "evict" and event.detail == ENDED for event in self._world.planner.story(name.key))

    # -------------------------------------------------------------- operations

    def _operate(self) -> None:
        world, chance = self._world, self._chance
        kind = chance.choice(list(OperationKind))
        tier = Tier.DRAM if kind is OperationKind.PREFETCH else chance.choice((Tier.DRAM, Tier.SSD, Tier.S3))
        space = chance.choice(world.namespaces)
        choice = chance.choice(
            (
                Choice(keys=tuple(self._keys())),
                Choice(keys=tuple(self._keys())),
                Choice(namespaces=(space.digest,), bytes_max=chance.choice((0, 1, 40_000))),
                Choice(prefix=chance.choice("0123456789abcdef"), bytes_max=chance.choice((0, 20_000))),
            )
        )
        if kind is OperationKind.PREFETCH:
            choice = Choice(keys=tuple(self._keys()))
        deadline_ns = world.now_ns + chance.choice((0, 5, 100, 1500)) * MILLISECOND
        asked = OperationAsked(world.next_number(), kind, choice, tier, deadline_ns, world.now_ns)
        self._operations[asked.operation] = asked
        world.post(asked)

    def _advanced(self, advanced: OperationAdvanced) -> None:
        if advanced.operation not in self._operations or not 0 <= advanced.done <= advanced.total:
            raise Violation(f"operation {advanced.operation} is said to be at {advanced.done} of {advanced.total}")

    def _ended(self, ended: OperationEnded) -> None:
        asked = self._operations.pop(ended.operation)
        if ended.blocks and not ended.bytes:
            raise Violation(f"{asked.kind} of {ended.blocks} blocks comes to no bytes")

    def _refused(self, refused: WishRefused) -> None:
        self._asked.pop(refused.number, None)
        self._operations.pop(refused.number, None)
        if refused.code not in FAIR_REFUSALS:
            raise Violation(f"a legal wish is refused: {refused.code}: {refused.message}")

    def _cancel(self) -> None:
        if self._operations:
            number = self._chance.choice(list(self._operations))
            self._world.post(OperationCancelled(number, self._world.now_ns))

    # ----------------------------------------------------------- rules and drain

    def _change_rules(self) -> None:
        chance = self._chance
        rules = Rules(
            policy=chance.choice((None, *POLICIES)),
            row_policy=chance.choice((None, None, *ROW_POLICIES)),
            ssd_hits_min=chance.choice((None, 1, 2)),
            s3_hits_min=chance.choice((None, 1, 3)),
            dram_clean_ahead=chance.choice((None, 0.0, 0.5)),
            ssd_clean_ahead=chance.choice((None, 0.0, 0.5)),
            ssd_bytes_per_day=chance.choice((None, 0, 10_000_000)),
            retry_after_ns=chance.choice((None, 1)),
        )
        self._world.post(RulesChanged(rules, self._world.now_ns))

    def _drain(self) -> None:
        world = self._world
        world.post(DrainStarted(world.now_ns))
        world.after(self._chance.randint(0, 30) * MILLISECOND, self._resume)

    def _resume(self) -> None:
        self._world.post(DrainEnded(self._world.now_ns))

    # ------------------------------------------------------------------- damage

    def _find_damage(self) -> None:
        """A copy is read again and found damaged; by the time the planner hears of it, it may have gone or moved."""
        ready = self._ready(self._keys())
        if ready:
            name, tier = self._chance.choice(ready)
            copy = self._copy(name, tier)
            assert copy is not None
            self._world.after(self._chance.choice((0, 0, 5, 50)) * MILLISECOND, self._tell, name, tier, copy.place)

    def _tell(self, name: BlockName, tier: Tier, place: bytes | int) -> None:
        """The copy at that place is none any more; another one is left alone."""
        world, counter, copy = self._world, ("faults", f"{tier.name.lower()}_corrupt"), self._copy(name, tier)
        there = copy is not None and copy.state is CopyState.READY and copy.place == place
        if there:
            world.oracle.hurt(name)
        counted = world.planner.counters.get(counter, 0)
        world.post(DamageFound(tier, name, place, "planned", world.now_ns))
        if world.planner.counters.get(counter, 0) - counted != there:
            raise Violation(f"damage at a place in {tier.name} is taken for another copy's, or for none", name)
        if there and copy is not None and copy.state is CopyState.READY:
            raise Violation(f"a copy in {tier.name} is damaged, and is one still", name)
        if there:
            world.check()  # before those who read it have gone

    # ------------------------------------------------------------- explanations

    def _ask_why(self) -> None:
        """What is explained as a hit is matched at this very moment, to its end; anything else is not."""
        world, chance = self._world, self._chance
        clients = [client for client in world.clients.values() if client.alive]
        if not clients:
            return
        client, shard = chance.choice(clients), chance.choice((0, 0, 1))
        chain = chance.choice(client.namespace.chains)
        keys = list(chain[: chance.randint(1, len(chain))])
        index = world.planner.state.indexes.get((client.namespace.digest, shard))
        explained = None if index is None else explain_in(world.planner.state, index, keys[-1], world.now_ns)
        name = world.name(client, keys[-1], shard)

        def matched(answer: MatchAnswered) -> None:
            hit = answer.length == len(keys)
            if explained is None:
                return
            if hit is not explained.matchable or hit is not explained.sentence.startswith("a hit: "):
                raise Violation(f"explained as {explained.sentence!r}, and a match says {answer.length}", name)

        self._match(client, keys, shard, matched)

    def _match(self, client: Client, keys: list[BlockKey], shard: int, then: Callable[[MatchAnswered], None]) -> None:
        world = self._world
        assert world.parents[keys[0]] == ROOT
        request = world.next_number()
        world.asked[request] = (client, keys, (shard,), then)
        world.post(MatchAsked(client.number, request, keys, (shard,), 0, world.now_ns))

    # -------------------------------------------------------------- at the end

    def check_over(self) -> None:
        """Everything was answered, and nothing is pinned any more."""
        if self._asked or self._operations:
            raise Violation(f"wishes {[*self._asked, *self._operations]} were never answered")
        if self._world.planner.state.pinned:
            raise Violation(f"{len(self._world.planner.state.pinned)} copies are still pinned")
