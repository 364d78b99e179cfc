"""One run of the SSD log's world: lives of random length, then a last one in which everything is looked at."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from flexkv_tiers.base import TierFault
from tests.sim.simulation import Report, SimulationFailed
from tests.sim.ssdlog.operations import PATIENCE_S, Callers
from tests.sim.ssdlog.world import LogWorld
from tests.sim.violation import Violation

MEMORY = Path("/dev/shm")
STEP_S = 1e-3
"""Mean time between two steps."""
CHECK_STEPS = 10
ACCOUNT_STEPS = 50
STORY_EVENTS_MAX = 40


def run(seed: int, steps: int, plant: str = "") -> Report:
    """Run one seed. Raises SimulationFailed at the first broken promise."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
        world = LogWorld(seed, Path(root))
        try:
            error = _lead(world, steps)
        finally:
            world.frames.close()
        if error is not None:
            raise SimulationFailed(_explain(world, error, seed, steps, plant)) from error
    return Report(seed, steps, world.digest.hexdigest(), {})


def _lead(world: LogWorld, steps: int) -> Exception | None:
    """What the world ended with. Its tasks get an end, too: a disk without power lets nobody wait."""

    async def lead() -> None:
        nonlocal ending
        try:
            await _live(world, steps)
            ending = None
        except Exception as error:
            ending = error
            with suppress(Exception):
                async with asyncio.timeout(PATIENCE_S):
                    await world.crash()

    ending: Exception | None = Violation("something is awaited, and nothing runs any more")
    with suppress(RuntimeError), asyncio.Runner(loop_factory=lambda: world.loop) as runner:
        runner.run(lead())
    return ending


async def _live(world: LogWorld, steps: int) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: _overheard(world, context))
    callers = Callers(world)
    await _open(world, callers)
    for step in range(1, steps + 1):
        world.step = step
        await asyncio.sleep(world.chance.expovariate(1 / STEP_S))
        await callers.room()
        if world.failure is not None:
            raise world.failure
        if world.chance.random() < 1 / world.settings.life_steps:
            await _next_life(world, callers)
        callers.act()
        if step % CHECK_STEPS == 0:
            world.check_limits()
        if step % ACCOUNT_STEPS == 0:
            await _account(world, callers)
    await _last_life(world, callers)


async def _open(world: LogWorld, callers: Callers) -> None:
    callers.begin_life()
    await world.open()


async def _next_life(world: LogWorld, callers: Callers) -> None:
    await (world.crash() if world.chance.random() < 0.5 else world.close())
    await callers.quiet()
    if world.failure is not None:
        raise world.failure
    world.end_life()
    await _open(world, callers)


async def _account(world: LogWorld, callers: Callers) -> None:
    await callers.quiet()
    assert world.recovery is not None
    await world.recovery
    await callers.drop_leaving()
    world.check_account()


async def _last_life(world: LogWorld, callers: Callers) -> None:
    """On a disk that is well: everything promised is read, everything is dropped, and nothing is left."""
    await _next_life(world, callers)
    world.plan.rates = {}
    await _account(world, callers)
    for name, location in list(world.model.kept.items()):
        if world.model.kept.get(name) == location:
            await callers.read(name, location)
    for name in list(world.model.kept):
        if name in world.model.kept:
            await callers.drop(name)
    await _account(world, callers)
    await world.close()


def _overheard(world: LogWorld, context: dict[str, Any]) -> None:
    """A task nobody waits for ended in an error: a fault was told elsewhere, anything else is a bug."""
    error = context.get("exception")
    if not isinstance(error, TierFault) and world.failure is None:
        world.failure = error or Violation(context["message"])


def _explain(world: LogWorld, error: Exception, seed: int, steps: int, plant: str) -> str:
    """What a person needs: how to see it again, what broke, where, and what had happened to the block."""
    command = f"scripts/simulate --world ssd-log --seed {seed} --steps {steps}" + (f" --plant {plant}" if plant else "")
    where = traceback.extract_tb(error.__traceback__)[-1]
    block = error.block if isinstance(error, Violation) else None
    lines = [
        f"replay with: {command}",
        f"step {world.step}, life {world.life}: {type(error).__name__}: {error}",
        f"at {where.filename.rpartition('/')[2]}:{where.lineno} in {where.name}: {where.line}",
        f"settings: {world.settings}",
    ]
    story = [event for event in world.history if event[2] in (None, block)]
    lines.extend(f"  {at_s:.6f} {what}{' (it)' if name else ''}" for at_s, what, name in story[-STORY_EVENTS_MAX:])
    return "\n".join(lines)
