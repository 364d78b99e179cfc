"""How a bug is planted: one function is another one for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.sim.simulation import SimulationFailed

Register = Callable[..., Callable[[Callable[[Any], Any]], Callable[[Any], Any]]]


@dataclass(frozen=True)
class Plant:
    """One bug: what is wrong, and how to put it there for a while."""

    about: str
    places: tuple[tuple[Any, str], ...]
    make: Callable[[Any], Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there inside the `with`."""
        owner, name = self.places[0]
        right = getattr(owner, name)
        wrong = self.make(right)
        before = [(place, attribute, vars(place)[attribute]) for place, attribute in self.places]
        try:
            for place, attribute in self.places:
                setattr(place, attribute, wrong)
            yield
        finally:
            for place, attribute, was in before:
                setattr(place, attribute, was)


def assert_caught(plant: Plant, name: str, runs: Iterable[Callable[[], object]], command: str) -> None:
    """With the bug planted one of the runs fails, not by a crash, and its message replays exactly that failure."""
    with plant.planted():
        failure = next((found for run in runs if (found := _failure(run))), "")
    assert failure, f"{name} was not caught"
    assert failure.startswith(f"replay with: {command} --seed ")
    assert not any(crash in failure for crash in ("TypeError", "AttributeError", "NameError")), failure
    assert f"--plant {name}" in failure


def _failure(run: Callable[[], object]) -> str:
    try:
        run()
    except SimulationFailed as failed:
        return str(failed)
    return ""


def planter(plants: dict[str, Plant]) -> Register:
    """A decorator that puts the decorated maker of a wrong function into `plants`, under its own name."""

    def plant(about: str, *places: tuple[Any, str]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
            plants[make.__name__.strip("_").replace("_", "-")] = Plant(about, places, make)
            return make

        return register

    return plant
