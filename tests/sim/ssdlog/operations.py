"""What callers do to the store, one coroutine per move, and whether each outcome was legal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio.faulty import DiskOperation
from tests.sim.ssdlog.model import Place
from tests.sim.ssdlog.settings import Harm
from tests.sim.ssdlog.world import LogWorld
from tests.sim.violation import Violation

PATIENCE_S = 60.0
"""Of virtual time: whatever was asked for has ended by then."""
DROP_ATTEMPTS_MAX = 20
ROOM_ATTEMPTS_MAX = 50
STALE_MAX = 50
"""Places of dropped records that are remembered, to read them once more."""


class Callers:
    """Operations under way in one world."""

    def __init__(self, world: LogWorld) -> None:
        self.world = world
        self.chance = world.chance
        self.running: dict[asyncio.Task[None], None] = {}  # ordered
        self.writing: dict[BlockName, None] = {}
        self.dropping: set[Place] = set()
        self._stale: list[Place] = []

    # ------------------------------------------------------------------- life

    def start(self, operation: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(operation)
        self.running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.running[task]
        if not task.cancelled() and (error := task.exception()) is not None and self.world.failure is None:
            self.world.failure = error

    async def room(self) -> None:
        """Wait until another operation may begin."""
        while len(self.running) >= self.world.settings.callers:
            await self._wait(asyncio.FIRST_COMPLETED)

    async def quiet(self) -> None:
        """Wait until nothing runs. Raises what an operation failed with."""
        while self.running:
            await self._wait(asyncio.ALL_COMPLETED)

    async def _wait(self, until: str) -> None:
        done, _ = await asyncio.wait(list(self.running), timeout=PATIENCE_S, return_when=until)
        if self.world.failure is not None:  # first: a recovery that failed leaves others waiting
            raise self.world.failure
        if not done:
            raise Violation(f"{len(self.running)} operations have not ended after {PATIENCE_S} s")

    def begin_life(self) -> None:
        self._stale.clear()

    async def drop_leaving(self) -> None:
        """Ask again for every drop that failed or was cancelled, on a disk that is well."""
        self.world.plan.rates, rates = {}, self.world.plan.rates
        for place in list(self.world.model.leaving):
            await self.drop_again(place)
        self.world.plan.rates = rates

    # ------------------------------------------------------------------ moves

    def act(self) -> None:
        """Begin something."""
        chance, model = self.chance, self.world.model
        drawn = chance.random()
        kept = [name for name in model.kept if name not in self.writing]
        if drawn < 0.4:
            fresh = [name for name in self.world.names if name not in model.kept and name not in self.writing]
            if fresh:
                self.start(self.write(chance.choice(fresh)))
        elif drawn < 0.46 and self.running:
            chance.choice(list(self.running)).cancel()
        elif drawn < 0.5 and self._stale:
            self.start(self.read_stale(chance.choice(self._stale)))
        elif drawn < 0.54 and (left := [place for place in model.leaving if place not in self.dropping]):
            self.start(self.drop_again(chance.choice(left)))
        elif drawn < 0.55 and kept:
            one = chance.choice(kept)
            group = [name for name in kept if (name.namespace, name.shard) == (one.namespace, one.shard)]
            for name in group:  # as a reset does
                self.start(self.drop_again((name, model.begin_drop(name))))
        elif drawn < 0.68 and kept:
            self.start(self.drop(chance.choice(kept)))
        elif kept:
            name = chance.choice(kept)
            self.start(self.read(name, model.kept[name]))

    async def write(self, name: BlockName) -> None:
        world, model = self.world, self.world.model
        self.writing[name] = None
        spans = world.frames.fill(name, world.cut(name))
        outcome = "cut off"
        try:
            await self._make_room(name)
            model.ever.add(name)
            location = await world.store.write(name, spans)
        except TierFault as fault:
            outcome = f"not written: {fault.fault}"
            self._check_write_fault(name, fault)
            self._not_written(name)
        except asyncio.CancelledError:
            self._not_written(name)
            raise
        else:
            outcome = f"written at {location:#x}"
            world.check_written(name, location)
            model.wrote(name, location)
        finally:
            world.note(outcome, name)
            world.frames.give(spans)
            del self.writing[name]

    def _not_written(self, name: BlockName) -> None:
        """Nothing of it is there, unless the disk could not be told so before the power was cut, or lied."""
        if self.world.crashed or self.world.settings.harm is Harm.LIES:
            self.world.model.maybe_next.add(name)

    def _check_write_fault(self, name: BlockName, fault: TierFault) -> None:
        if fault.fault is Fault.DOWN and self.world.up and not self.world.closing:
            raise Violation(f"a tier that is up says that it is down: {fault.detail}", name)
        if self.world.closing or self.world.settings.harm is Harm.FAULTS or fault.fault is Fault.FULL:
            return
        raise Violation(f"a write failed on a disk that is well: {fault.fault}: {fault.detail}", name)

    async def _make_room(self, name: BlockName) -> None:
        """The planner's half of the bargain: never more than the usable bytes."""
        world, model = self.world, self.world.model
        for _ in range(ROOM_ATTEMPTS_MAX):
            known = [*model.kept, *self.writing, *(leaving for leaving, _ in model.leaving)]
            kept = [each for each in model.kept if each not in self.writing]
            if sum(map(world.record_bytes, known)) <= world.store.usable_bytes or not kept:
                return
            await self.drop(self.chance.choice(kept))

    async def read(self, name: BlockName, location: int) -> None:
        world, place = self.world, (name, location)
        spans = world.frames.take(world.cut(name))
        met, landed = world.plan.met[DiskOperation.READ], []
        patience_s = self.chance.choice((0.0, 0.0, 0.0, 0.02))
        stop_after = self.chance.choice((len(spans),) * 9 + (1,))
        must_hold = world.model.holds(place)  # whatever becomes of the record meanwhile: readers are never cut
        outcome = "cut off"
        reading = world.store.read(name, location, spans)
        try:
            async for chunk in reading:
                world.frames.check(name, chunk, spans[chunk])
                landed.append(chunk)
                if len(landed) == stop_after:
                    break
                if patience_s:
                    await asyncio.sleep(self.chance.uniform(0, patience_s))
            outcome = "read"
            if landed != list(range(stop_after)):
                raise Violation(f"a read ended after chunks {landed} of {len(spans)}", name)
        except TierFault as fault:
            outcome = f"not read: {fault.fault}"
            if must_hold and world.plan.met[DiskOperation.READ] == met:
                self._check_read_fault(place, fault)
        finally:
            await reading.aclose()  # type: ignore[attr-defined]
            world.note(outcome, name)
            world.frames.give(spans)

    def _check_read_fault(self, place: Place, fault: TierFault) -> None:
        world, (name, location) = self.world, place
        unnamed = world.store.status()["records_let_go_unnamed"] and world.settings.harm is not Harm.NONE
        if fault.fault is Fault.MISSING and world.model.kept.get(name) == location and unnamed:
            del world.model.kept[name]
        elif not world.closing:
            raise Violation(f"a record that must be there cannot be read: {fault.fault}: {fault.detail}", name)

    async def read_stale(self, place: Place) -> None:
        """A location that was dropped names nothing."""
        name, location = place
        spans = self.world.frames.take(self.world.cut(name))
        try:
            async for chunk in self.world.store.read(name, location, spans):
                raise Violation(f"chunk {chunk} was read from a location that was dropped", name)
        except TierFault as fault:
            if fault.fault is not Fault.MISSING and not self.world.closing:
                raise Violation(f"a dropped location gives {fault.fault}", name) from fault
        finally:
            self.world.frames.give(spans)

    async def drop(self, name: BlockName) -> None:
        await self.drop_again((name, self.world.model.begin_drop(name)))

    async def drop_again(self, place: Place) -> None:
        """Ask for a drop, as the planner does: once at a time. Unless it returns, the record may be there or not."""
        world, (name, location) = self.world, place
        outcome = "drop cut off"
        self.dropping.add(place)
        try:
            await world.store.drop(name, location)
        except TierFault as fault:
            outcome = f"not dropped: {fault.fault}"
            if not world.closing and world.settings.harm is not Harm.FAULTS:
                raise Violation(f"a drop failed on a disk that is well: {fault.detail}", name) from fault
        else:
            outcome = "dropped"
            world.model.dropped(place)
            self._stale = [*self._stale[-STALE_MAX:], place]
        finally:
            self.dropping.remove(place)
            world.note(outcome, name)
