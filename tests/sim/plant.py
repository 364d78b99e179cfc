"""How a bug is planted: one function is another one for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


def planter(plants: dict[str, Plant]) -> Register:
    """A decorator that puts the decorated maker of a wrong function into `plants`, under its own name."""

    def plant(about: str, *places: tuple[Any, str]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
            plants[make.__name__.strip("_").replace("_", "-")] = Plant(about, places, make)
            return make

        return register

    return plant
