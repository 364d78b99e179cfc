"""The oracle of the SSD log: which records must be there, which may be, and where the store says they lie.

Knows only what callers were told: locations, faults, `lost`. Bytes follow from a block's name, so it keeps none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexkv_py.core.messages import BlockName, LostRecord
from flexkv_tiers.base import FoundBatch
from tests.sim.violation import Violation

Place = tuple[BlockName, int]
"""A block and the location the store gave for a record of it."""


class LogModel:
    """`doubted`: nothing can be promised of these any more, because their bytes were damaged or reads failed."""

    def __init__(self, *, lies: bool) -> None:
        self.lies = lies
        """The disk acknowledges what it never does: anything once written may be there or not."""
        self.kept: dict[BlockName, int] = {}
        self.leaving: dict[Place, None] = {}  # a drop was asked for and has not been confirmed; ordered
        self.maybe: set[BlockName] = set()  # `found` may tell of it or not
        self.maybe_next: set[BlockName] = set()  # the same for the next life: a write failed or was cut off
        self.doubted: set[BlockName] = set()
        self.untold: set[BlockName] = set()  # kept by the last life, and not found yet in this one
        self.ever: set[BlockName] = set()
        self._found: set[BlockName] = set()
        self._went_untold = False
        self._reads_failed = False

    # ------------------------------------------------------------- operations

    def wrote(self, name: BlockName, location: int) -> None:
        """A write was acknowledged. Of an older record that may still come back the doubts remain."""
        if name not in self.kept and name not in self.untold and all(name != each for each, _ in self.leaving):
            self.doubted.discard(name)
        if name in self.kept:  # a restart found it meanwhile: the older one is to go
            self.leaving[name, self.kept[name]] = None
        if (name, location) in self.leaving:
            raise Violation(f"location {location:#x} is given twice", name)
        self.kept[name] = location
        if name in self.untold:  # what the last life left of it is not promised as well
            self.untold.discard(name)
            self.maybe.add(name)

    def begin_drop(self, name: BlockName) -> int:
        location = self.kept.pop(name)
        self.leaving[name, location] = None
        return location

    def dropped(self, place: Place) -> None:
        """A drop was confirmed: from here on this record never comes back."""
        self.leaving.pop(place, None)

    def lost(self, records: Sequence[LostRecord]) -> None:
        """The store let go of these by itself."""
        for record in records:
            name, place = record.block, (record.block, record.location)
            if self.kept.get(name) == record.location:
                del self.kept[name]
            elif place in self.leaving:
                del self.leaving[place]
            else:
                raise Violation(f"told lost at {record.location:#x}, where no caller knows it", name)

    def holds(self, place: Place) -> bool:
        """Whether a record must be readable at this place."""
        return self.kept.get(place[0]) == place[1] and place[0] not in self.doubted and not self.lies

    # ------------------------------------------------------------------ lives

    def cut_while_let_go(self, locations: set[int]) -> None:
        """The end of a life decides whether these are gone: the store was about to let go of them and told nobody."""
        for name in [name for name, location in self.kept.items() if location in locations]:
            del self.kept[name]
            self.maybe_next.add(name)

    def cut_while_owed(self, owed: Iterable[BlockName | None]) -> None:
        """The disk had not been told yet that nobody shall find these: the next life may. None: whose, nobody knows."""
        for name in owed:
            self.maybe_next |= self.ever if name is None else {name}

    def end_life(self, *, untold: bool) -> None:
        """Nobody knows a location any more. After a drop that failed the disk may have done it or not.

        `untold`: acknowledged records went, and the store could not say which.
        """
        self._went_untold |= untold
        self.maybe |= self.maybe_next | {name for name, _ in self.leaving}
        self.maybe_next = set()
        self.untold |= self.kept.keys()
        self.leaving.clear()
        self.kept = {}
        self._found = set()

    def found(self, batch: FoundBatch, cut: tuple[int, ...], record_bytes: int) -> list[BlockName]:
        """A restart tells of these."""
        names = []
        if batch.record_bytes != record_bytes or batch.chunk_bytes != cut:
            raise Violation(f"found records of {batch.record_bytes} bytes cut into {batch.chunk_bytes}, not {cut}")
        for block in batch.blocks:
            name = BlockName(batch.namespace, batch.shard, block.key, block.parent)
            names.append(name)
            if name in self._found:
                raise Violation("found twice", name)
            if name not in self.untold and name not in self.maybe and not (self.lies and name in self.ever):
                raise Violation("found what was dropped, lost or never written", name)
            self._found.add(name)
            self.untold.discard(name)
            if name in self.kept:
                self.leaving[name, block.location] = None
            else:
                self.kept[name] = block.location
        return names

    def met_failed_reads(self) -> None:
        """What a restart cannot read is lost."""
        self._reads_failed = True

    def end_found(self) -> None:
        """The restart has told all, and no later one will tell more."""
        missing = self.untold - self.doubted
        if missing and not self._reads_failed and not self._went_untold and not self.lies:
            raise Violation(f"{len(missing)} records were acknowledged and are not found", min(missing, key=_order))
        self.maybe = set()
        self._went_untold = self._reads_failed = False
        self.doubted &= self.kept.keys()
        self.untold = set()


def _order(name: BlockName) -> tuple[bytes, int]:
    return name.key, name.shard
