"""One run: a world, its workload, faults until most steps are done, then calm, and the last judgement."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.messages import Outcome, Tier
from flexkvd.facts import facts_of
from tests.sim.faults import SECOND
from tests.sim.violation import Violation
from tests.sim.workload import Workload
from tests.sim.world import World

CALM_NS_MAX = 120 * SECOND
CALM_STEPS_MAX = 20_000
"""Once faults stop, everything asked for must have ended by then."""


class SimulationFailed(AssertionError):
    """Its message is the command that replays the run, what broke, and the story of the block concerned."""


@dataclass(frozen=True)
class Report:
    """What one run that held came to."""

    seed: int
    steps: int
    digest: str
    counters: dict[tuple[str, str], int]


def run(seed: int, steps: int, plant: str = "") -> Report:
    """Run one seed. Raises SimulationFailed at the first broken promise."""
    world = World(seed)
    try:
        workload = _live(world, steps)
        _calm_down(world)
        _redeem(world, workload)
        _close_all(world)
    except Exception as error:
        raise SimulationFailed(_explain(world, error, seed, steps, plant)) from error
    return Report(seed, world.steps, world.digest.hexdigest(), dict(world.planner.counters))


def _live(world: World, steps: int) -> Workload:
    workload = Workload(world)
    while world.steps < steps and world.tick():
        pass
    workload.stop()
    world.rows.stop()
    world.wishes.stop()
    return workload


def _calm_down(world: World) -> None:
    """Faults stop: now every ticket ends, every queue drains, every request is answered."""
    world.faults.stop()
    world.tenants.calm(world)
    for tier in list(world.stores):
        world.set_tier(tier, up=True)
    _settle(world, "after the faults stopped")
    left = [ticket.number for ticket in world.tickets.values() if not ticket.over]
    if left:
        raise Violation(f"tickets {left} never ended")
    unanswered = [request for request, (client, _) in world.requests.items() if client.alive]
    if unanswered or world.asked:
        raise Violation(f"requests {unanswered or list(world.asked)} were never answered")
    world.rows.check_over()
    world.tenants.check_ended(world)
    world.wishes.check_over()
    snapshot = facts_of(world.planner.state)
    for what in ("tickets", "transfers", "loads_waiting", "saves_waiting", "demands_waiting", "promotions_in_flight"):
        if snapshot[what]:
            raise Violation(f"{snapshot[what]} {what} are left when nothing runs any more")
    state = world.planner.state
    down = [tier.name for tier, level in state.levels.items() if not level.up]
    if down:
        raise Violation(f"{down} came back, and the planner still takes them for down")
    _compare_stores(world)
    if state.flushes or state.resets or world.recovering:
        raise Violation(f"{len(state.flushes)} flushes and {len(state.resets)} resets never ended")


def _compare_stores(world: World) -> None:
    """What the planner counts on is there, and on SSD its bytes are those the disk has given out."""
    for index in world.planner.state.indexes.values():
        for block in index.blocks.values():
            for copy in block.copies():
                store = world.stores.get(copy.tier)
                if store is not None and copy.state is CopyState.READY and not store.holds(block.name):
                    raise Violation(f"the planner counts on a record that {copy.tier.name} does not have", block.name)
    disk = world.stores.get(Tier.SSD)
    if disk is not None:
        counted, taken = world.planner.state.levels[Tier.SSD].used_bytes, disk.records.used_bytes
        if counted != taken and not disk.swapped:
            raise Violation(f"{counted} bytes of SSD are counted, {taken} are taken")


def _settle(world: World, when: str) -> None:
    until_ns, until_steps = world.now_ns + CALM_NS_MAX, world.steps + CALM_STEPS_MAX
    while world.tick():
        if world.now_ns > until_ns:
            raise Violation(f"something still runs {CALM_NS_MAX // SECOND} s {when}")
        if world.steps > until_steps:
            raise Violation(f"the planner spins: {CALM_STEPS_MAX} steps {when} and no end")
    world.check()


def _redeem(world: World, workload: Workload) -> None:
    """Load what is still promised below DRAM, block by block: it is there, with the right bytes."""
    if world.planner.state.draining:
        return
    for client in list(world.clients.values()):
        world.close_session(client)
    for tier, block in world.oracle.promised():
        space = next(space for space in world.namespaces if space.digest == block.namespace)
        client = world.open_session(space, block.shard)
        ticket = workload.load(client, [block.key])
        assert ticket is not None
        _settle(world, "after a load")
        if ticket.outcomes != [Outcome.LOADED] and (tier, block) in world.oracle.promised():
            raise Violation(f"acknowledged in {tier.name}, but a load says {ticket.outcomes}", block)
        world.close_session(client)


def _close_all(world: World) -> None:
    """With every session gone, frames are used by READY copies alone."""
    for client in list(world.clients.values()):
        world.close_session(client)
    _settle(world, "after the last session closed")
    state = world.planner.state
    ready = sum(
        block.index.frame_pages * block.dram.present.bit_count()
        for index in state.indexes.values()
        for block in index.blocks.values()
        if block.dram is not None and block.dram.state is CopyState.READY
    )
    if state.frames.used_pages != ready:
        raise Violation(f"{state.frames.used_pages} pages are used, READY copies account for {ready}")
    if world.clients or state.sessions or state.leases or state.rows.by_id or state.rows.going:
        raise Violation("something of a closed session is left")


def _explain(world: World, error: Exception, seed: int, steps: int, plant: str) -> str:
    """What a person needs: how to see it again, what broke, where, and what had happened to the block."""
    command = f"scripts/simulate --seed {seed} --steps {steps}" + (f" --plant {plant}" if plant else "")
    where = traceback.extract_tb(error.__traceback__)[-1]
    lines = [
        f"replay with: {command}",
        f"step {world.steps}, {world.now_ns / 1e9:.6f} s, life {world.life}: {type(error).__name__}: {error}",
        f"at {where.filename.rpartition('/')[2]}:{where.lineno} in {where.name}: {where.line}",
        f"configuration: {world.config}",
    ]
    block = error.block if isinstance(error, Violation) else None
    if block is not None:
        lines.append(f"story of {block.key.hex()[:12]} (all shards):")
        lines.extend(
            f"  {event.now_ns / 1e9:.6f} {event.tier.name.lower():4} {event.what} {event.detail}"
            for event in world.planner.story(block.key)
        )
    return "\n".join(lines)
