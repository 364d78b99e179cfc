"""What the daemon still has to do before it is ready, and how far it is.

Owns the list that `/readyz` shows. Steps are added by `startup` and ended by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """One thing that runs behind the open socket. `progress` says how far it is, in words."""

    name: str
    progress: Callable[[], str]


@dataclass(slots=True)
class Readiness:
    """Steps that are not done. Ready when there are none and the daemon does not drain."""

    steps: dict[str, Step] = field(default_factory=dict)
    draining: bool = False
    on_ready: Callable[[], None] = lambda: None

    def begin(self, name: str, progress: Callable[[], str]) -> None:
        self.steps[name] = Step(name, progress)

    def end(self, name: str) -> None:
        del self.steps[name]
        if self.ready:
            self.on_ready()

    @property
    def ready(self) -> bool:
        return not self.steps and not self.draining

    def report(self) -> dict[str, object]:
        """For `/readyz`: `reasons` names what is missing, with how far each is."""
        reasons = {name: step.progress() for name, step in self.steps.items()}
        if self.draining:
            reasons["drain"] = "the daemon is stopping"
        return {"ready": self.ready, "reasons": reasons}
