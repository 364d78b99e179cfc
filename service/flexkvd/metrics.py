"""The text of `/metrics`: every family of `families` with the values `measures` reads now.

Owns the Prometheus text format (version 0.0.4) and nothing else. It is written here, because it is made on the
event loop: that of prometheus_client costs ten times as much for the few thousand series there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

from flexkvd.durations import Durations
from flexkvd.families import FAMILIES, Family

SERIES_CACHED_MAX = 8192

Samples = Mapping[Any, float]
"""Values by a tuple of label values."""


class Source(Protocol):
    """Where the values come from, by name of the family and label values."""

    def samples(self) -> Mapping[str, Samples]:
        """Of every counter and gauge."""
        ...

    def durations(self) -> Mapping[str, Mapping[tuple[str, ...], Durations]]:
        """Of every histogram."""
        ...


class Metrics:
    """What Prometheus is told."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def text(self) -> bytes:
        """The Prometheus text format, read from the parts now."""
        samples, durations = self._source.samples(), self._source.durations()
        lines: list[str] = []
        for family in FAMILIES:
            lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
            if family.kind == "histogram":
                for labels, measured in durations[family.name].items():
                    lines += _histogram(family, labels, measured)
            else:
                lines += [_series(family, labels) + _number(value) for labels, value in samples[family.name].items()]
        return "\n".join([*lines, ""]).encode()


def _histogram(family: Family, labels: tuple[str, ...], durations: Durations) -> Iterator[str]:
    bounds = durations.cumulative()
    for (_, count), series in zip(bounds, _buckets(family, labels, tuple(bound for bound, _ in bounds)), strict=True):
        yield series + str(count)
    yield _series(family, labels, "_sum") + repr(durations.total_s)
    yield _series(family, labels, "_count") + str(bounds[-1][1])


@lru_cache(SERIES_CACHED_MAX)
def _series(family: Family, labels: tuple[str, ...], suffix: str = "") -> str:
    """A line up to its value."""
    return f"{family.name}{suffix}{_braced(zip(family.labels, labels, strict=True))} "


@lru_cache(SERIES_CACHED_MAX)
def _buckets(family: Family, labels: tuple[str, ...], bounds: tuple[str, ...]) -> tuple[str, ...]:
    named = list(zip(family.labels, labels, strict=True))
    return tuple(f"{family.name}_bucket{_braced([*named, ('le', bound)])} " for bound in bounds)


def _braced(labels: Any) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
