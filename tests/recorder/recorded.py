"""Planners that record what they are told, in worlds of the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.frames import FramePool
from flexkv_py.core.messages import Event, Instruction
from flexkv_py.core.planner import Planner
from flexkvd.control.policies import policy_facts
from flexkvd.facts import facts_of
from flexkvd.planning import EXTENSIONS
from flexkvd.recorder.file import Recording, unpack
from flexkvd.recorder.replay import words_of
from flexkvd.recorder.ring import Recorder
from tests.sim import world
from tests.sim.whims import Whims

CAPACITY_BYTES = 64 << 20
EVENTS_PER_LOOK = 16


class RecordedPlanner(Planner):
    """A planner whose recorder hears every event first, as the engine has it; people look at it now and then."""

    def __init__(self, config: PlannerConfig, extensions: Sequence[Any] = EXTENSIONS) -> None:
        super().__init__(replace(config, quotas=dict(config.quotas)), extensions)  # a world changes its own
        self.recorder = Recorder(self, CAPACITY_BYTES)
        self.failure = ""
        self._heard = 0
        self.by_chance = False
        """It had a row policy that draws chance, of which no event tells."""

    def handle(self, event: Event) -> list[Instruction]:
        self.recorder.note(event)
        self._heard += 1
        if self._heard % EVENTS_PER_LOOK == 0:
            facts_of(self.state)
            policy_facts(self.state)
        self.by_chance |= isinstance(self.state.rows.policy, Whims)
        try:
            return super().handle(event)
        except Exception as error:
            self.failure = words_of(error)
            raise

    def recording(self) -> Recording:
        """What a dump has now; the simulator's watch over frames is no part of a planner."""
        pool, watched = FramePool.__new__(FramePool), self.state.frames
        pool.__dict__ = {name: value for name, value in vars(watched).items() if name != "_given"}
        self.state.frames = pool
        try:
            return unpack(self.recorder.dump("bug" if self.failure else "asked", self.failure))
        finally:
            self.state.frames = watched


@contextmanager
def recorded_worlds() -> Iterator[list[RecordedPlanner]]:
    """Worlds made meanwhile record; all planners of all their lives are in the list."""
    planners: list[RecordedPlanner] = []

    def make(config: PlannerConfig, extensions: Sequence[Any]) -> RecordedPlanner:
        planners.append(RecordedPlanner(config, extensions))
        return planners[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "Planner", make)
        yield planners
    for planner in planners:
        planner.recorder.close()
