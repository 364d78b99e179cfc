"""What the daemon still has to do before it is ready, how far it is, and what it serves without meanwhile.

Owns the list that `/readyz` shows. Steps are added by `startup` and ended by it. A step that waits for
something which may be away for hours does not keep the daemon from being ready: it serves what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """One thing that runs behind the open socket. `progress` says how far it is, in words."""

    name: str
    progress: Callable[[], str]
    awaited: bool = True  # not ready before it has ended


@dataclass(slots=True)
class Readiness:
    """Steps that are not done. Ready when none of them is awaited and the daemon does not drain."""

    steps: dict[str, Step] = field(default_factory=dict)
    draining: bool = False
    drain_reason: str = ""
    on_ready: Callable[[], None] = lambda: None  # also when a step ends that was not awaited any more

    def begin(self, name: str, progress: Callable[[], str], *, awaited: bool = True) -> None:
        self.steps[name] = Step(name, progress, awaited)

    def end(self, name: str) -> None:
        del self.steps[name]
        if self.ready:
            self.on_ready()

    def go_on_without(self, name: str) -> None:
        """Be ready before this step has ended, if it has not; it goes on all the same."""
        step = self.steps.get(name)
        if step is not None and step.awaited:
            step.awaited = False
            if self.ready:
                self.on_ready()

    @property
    def ready(self) -> bool:
        return not self.draining and not any(step.awaited for step in self.steps.values())

    def report(self) -> dict[str, object]:
        """For `/readyz`: `reasons` names what is awaited, `degraded` what is served without, with how far each is."""
        reasons = {name: step.progress() for name, step in self.steps.items() if step.awaited}
        if self.draining:
            reasons["drain"] = self.drain_reason
        degraded = {name: step.progress() for name, step in self.steps.items() if not step.awaited}
        return {"ready": self.ready, "reasons": reasons, "degraded": degraded}
