"""Planners that record what they are told, in worlds of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.frames import FramePool
from flexkv_py.core.messages import Event, Instruction
from flexkv_py.core.planner import Planner
from flexkvd.recorder.file import Recording, unpack
from flexkvd.recorder.replay import words_of
from flexkvd.recorder.ring import Recorder
from tests.sim import world

CAPACITY_BYTES = 64 << 20


class RecordedPlanner(Planner):
    """A planner whose recorder hears every event first, as the engine has it."""

    def __init__(self, config: PlannerConfig, capacity_bytes: int = CAPACITY_BYTES) -> None:
        super().__init__(config)
        self.recorder = Recorder(self, capacity_bytes)
        self.failure = ""

    def handle(self, event: Event) -> list[Instruction]:
        self.recorder.note(event)
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

    def make(config: PlannerConfig) -> RecordedPlanner:
        planners.append(RecordedPlanner(config))
        return planners[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "Planner", make)
        yield planners
    for planner in planners:
        with closing(planner.recorder):
            pass
