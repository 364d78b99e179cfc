"""What happens to a disk that nobody watches: between two lives bytes change, or a file is cut off."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.core.messages import BlockName
from flexkv_tiers.base import TierFault
from flexkv_tiers.ssd.directory import segment_path, segments
from flexkv_tiers.ssd.format import PAGE_BYTES
from tests.tiers.segment_files import Place, records_of, regions

DAMAGES_MAX = 3
FLIPS = 6
"""Bytes changed in each page of what is not a record."""


def damage(directory: Path, chance: random.Random) -> Iterator[tuple[str, set[BlockName]]]:
    """Damage something of a directory; yields what, and whose records cannot be promised any more."""
    for _ in range(chance.randint(1, DAMAGES_MAX)):
        files = [segment_path(directory, each.number) for each in segments(directory)]
        if files:
            yield _damage_file(chance.choice(files), chance)


def _damage_file(path: Path, chance: random.Random) -> tuple[str, set[BlockName]]:
    try:
        places, held = regions(path), list(records_of(path))
    except TierFault:  # damaged before, or never used
        return "nothing", set()
    everything = {name for name, _ in held}
    kind = chance.choice((*places, "record", "record", "cut"))
    if kind == "cut":
        page = chance.randrange(1, path.stat().st_size // PAGE_BYTES)
        os.truncate(path, page * PAGE_BYTES)
        return f"{path.name} cut at page {page}", everything if page < 3 else _behind(held, page)
    if kind == "record":
        if not held:
            return "nothing", set()
        name, place = chance.choice(held)
        place.flip(_spot(chance, place.length))
        return f"{path.name} record at page {place.offset // PAGE_BYTES}", {name}
    place = places[kind]
    if kind == "dead map" and chance.random() < 0.5:  # one of two copies
        place = Place(place.path, place.offset + chance.choice((0, PAGE_BYTES)), PAGE_BYTES)
        place.flip(_spot(chance, PAGE_BYTES))
        return f"{path.name} one copy of the dead map", set()
    for at in range(0, place.length, PAGE_BYTES):
        for spot in {_spot(chance, PAGE_BYTES) for _ in range(FLIPS)}:
            place.flip(at + spot)
    return f"{path.name} {kind}", everything if kind in ("segment header", "dead map") else set()


def _behind(held: list[tuple[BlockName, Place]], page: int) -> set[BlockName]:
    return {name for name, place in held if place.offset + place.length > page * PAGE_BYTES}


def _spot(chance: random.Random, length: int) -> int:
    """A byte to change; near the front, where the tables are, as often as anywhere."""
    return chance.randrange(min(length, 512) if chance.random() < 0.5 else length)
