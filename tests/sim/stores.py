"""The two lower tiers as the simulator has them: real records that outlive the daemon and can be damaged.

`Disk` names places by number, as the SSD tier does; `Bucket` names objects by their block, as the S3
tier does, so a delete that comes late takes whatever has that name by then.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from flexkv_py.core.messages import BlockName, Fault, FoundBlock, LostRecord, Tier
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.codec import HEADER_BYTES, pack_header, parse_header
from flexkv_tiers.fake import FakeRecords
from tests.sim.segments import SEGMENT_RECORDS, Entry, footer_holds, pack_footer, parse_footer
from tests.sim.violation import Violation

PAGE_BLOCKS_MAX = 8
"""Records one batch of a recovery or listing tells of."""


class Store:
    """What both have in common; `places` maps each block to the location of its newest record."""

    tier: Tier

    def __init__(self, capacity_bytes: int) -> None:
        self.records = FakeRecords(capacity_bytes)
        self.places: dict[BlockName, int] = {}
        self.swapped = False  # records lie in places of other sizes: bytes cannot be compared any more
        self._reads: Counter[BlockName] = Counter()
        self._pulled_away: set[BlockName] = set()

    def write(self, block: BlockName, chunks: Sequence[bytes], checksums: Sequence[bytes]) -> int:
        location = self.places[block] = self.records.write(block, chunks, checksums)
        return location

    def holds(self, block: BlockName) -> bool:
        """Whether some record of this block is there, damaged or not."""
        return block in self.places

    def begin_read(self, block: BlockName) -> None:
        self._reads[block] += 1

    def end_read(self, block: BlockName) -> None:
        """Raises Violation if the store itself took the record away meanwhile."""
        self._reads[block] -= 1
        if block in self._pulled_away:
            raise Violation("the store reclaimed a record that was being read", block)

    def pinned(self, block: BlockName) -> bool:
        """Whether the record must stay where it is for now."""
        return self._reads[block] > 0

    def reclaim(self, chance: random.Random) -> LostRecord | None:
        """Let go of some record for reasons of the store's own: for room, or because its time is over."""
        names = [name for name in self.places if not self.pinned(name)]
        if not names:
            return None
        block = chance.choice(names if chance.random() < 0.5 else names[-2:])  # now and then one just written
        if self._reads[block]:
            self._pulled_away.add(block)
        location = self.places[block]
        self._forget(block, location)
        return LostRecord(block, location if self.tier is Tier.SSD else 0)

    def crash(self, chance: random.Random) -> None:
        """The daemon is gone, and every read with it."""
        self._reads.clear()

    def damage(self, chance: random.Random) -> list[BlockName]:
        """Flip, truncate, zero or swap records; returns the blocks that lost theirs."""
        names = [name for name, place in self.places.items() if len(self.records.raw[place]) > HEADER_BYTES]
        if not names:
            return []
        block = chance.choice(names)
        raw = self.records.raw[self.places[block]]
        how = chance.choice(("flip", "swap", "flip header", "truncate", "zero", "swap"))
        if how == "swap" and len(names) > 1:
            other = chance.choice([name for name in names if name != block])
            self.swapped = True
            there, here = self.places[other], self.places[block]
            self.records.raw[here], self.records.raw[there] = self.records.raw[there], raw
            return [block, other]
        if how == "truncate":
            del raw[chance.randrange(HEADER_BYTES, len(raw), chance.choice((1, ALIGN_BYTES))) :]
        elif how == "zero":
            raw[HEADER_BYTES:] = bytes(len(raw) - HEADER_BYTES)
        else:
            at = chance.randrange(256) if how == "flip header" else chance.randrange(len(raw))
            raw[at] ^= 1 << chance.randrange(8)
        return [block]

    def _forget(self, block: BlockName, location: int) -> None:
        self.records.drop(block, location)
        if self.places.get(block) == location:
            del self.places[block]


class Disk(Store):
    """SSD: several records of one block may lie in different places."""

    tier = Tier.SSD

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._unsynced: set[tuple[BlockName, int]] = set()
        self._footers: list[bytes] = []

    def write(self, block: BlockName, chunks: Sequence[bytes], checksums: Sequence[bytes]) -> int:
        location = super().write(block, chunks, checksums)
        self._unsynced.add((block, location))
        return location

    def sync(self) -> None:
        """What was written before is durable now."""
        self._unsynced.clear()

    def pinned(self, block: BlockName) -> bool:
        return super().pinned(block) or (block, self.places[block]) in self._unsynced

    def crash(self, chance: random.Random) -> None:
        """What was not synced may be gone. Then the segments are sealed, and a footer may be damaged."""
        super().crash(chance)
        for block, location in sorted(self._unsynced, key=lambda record: record[1]):
            if chance.random() < 0.5:
                self._forget(block, location)
        self._unsynced.clear()
        self.places.clear()
        segments: dict[int, list[Entry]] = {}
        for location in self.records.raw:
            if (entry := self._entry(location)) is not None:
                segments.setdefault(location // SEGMENT_RECORDS, []).append(entry)
        self._footers = [_perhaps_damaged(pack_footer(entries), chance) for entries in segments.values()]

    def read(self, block: BlockName, location: int, chunk: int) -> tuple[bytes, bytes]:
        return self.records.read(block, location, chunk)

    def drop(self, block: BlockName, location: int) -> None:
        self._forget(block, location)

    def tear(
        self, block: BlockName, chunks: Sequence[bytes], checksums: Sequence[bytes], chance: random.Random
    ) -> None:
        """The daemon dies while this record is written: any part of it may be there."""
        whole = pack_header(block, [len(chunk) for chunk in chunks], checksums) + b"".join(chunks)
        try:
            location = self.records.write(block, chunks, checksums)
        except TierFault:
            return
        torn = bytearray(whole)
        start = chance.randrange(0, len(torn), 512)
        torn[start : start + chance.randrange(512, len(torn))] = b""
        torn.extend(bytes(len(whole) - len(torn)))
        if torn != whole:
            self.records.raw[location] = torn

    def pages(self) -> Iterator[list[FoundBatch]]:
        """Headers of the last life, batch by batch; a damaged one or a second of its block is erased."""
        return self._pages(list(self.records.raw))

    def _pages(self, locations: list[int]) -> Iterator[list[FoundBatch]]:
        seen: set[BlockName] = set()
        told = {entry[0]: entry for footer in self._footers if footer_holds(footer) for entry in parse_footer(footer)}
        for start in range(0, len(locations), PAGE_BLOCKS_MAX):
            batches: dict[tuple[bytes, int, int], FoundBatch] = {}
            for location in locations[start : start + PAGE_BLOCKS_MAX]:
                if location not in self.records.raw:
                    continue
                known = told.get(location) or self._entry(location)
                if known is None or known[1] in seen:
                    self._erase(location)
                    continue
                _, block, record_bytes = known
                seen.add(block)
                self.places.setdefault(block, location)
                group = (block.namespace, block.shard, record_bytes)
                batch = batches.setdefault(group, FoundBatch(*group, []))
                batch.blocks.append(FoundBlock(block.key, block.parent, location))
            yield list(batches.values())

    def _entry(self, location: int) -> Entry | None:
        """What a record's own header says of it; None when it is damaged."""
        try:
            header = parse_header(self.records.raw[location][:HEADER_BYTES])
        except TierFault:
            return None
        return location, header.block, header.record_bytes

    def _erase(self, location: int) -> None:
        names = [name for name, place in self.places.items() if place == location]
        for name in names:
            del self.places[name]
        self.records.raw.pop(location, None)
        self.records.used_bytes -= self.records._room.pop(location, 0)


class Bucket(Store):
    """S3: one object per block, by name; a write replaces, a late delete takes whatever is there."""

    tier = Tier.S3

    def write(self, block: BlockName, chunks: Sequence[bytes], checksums: Sequence[bytes]) -> int:
        old = self.places.get(block)
        super().write(block, chunks, checksums)
        if old is not None:
            self.records.drop(block, old)
        return 0

    def read(self, block: BlockName, location: int, chunk: int) -> tuple[bytes, bytes]:
        assert location == 0
        place = self.places.get(block)
        if place is None:
            raise TierFault(Fault.MISSING, "no object of that name")
        return self.records.read(block, place, chunk)

    def drop(self, block: BlockName, location: int) -> None:
        assert location == 0
        place = self.places.get(block)
        if place is not None:
            self._forget(block, place)

    def pages(self) -> Iterator[list[FoundBatch]]:
        """Names in order, page by page, each page as the bucket is when it is asked for."""
        after = b""
        while True:
            names = sorted((name for name in self.places if _sort_key(name) > after), key=_sort_key)[:PAGE_BLOCKS_MAX]
            if not names:
                return
            batches: dict[tuple[bytes, int, int], FoundBatch] = {}
            for name in names:
                if len(self.records.raw[self.places[name]]) % ALIGN_BYTES:
                    continue  # as the real listing does: no record has that size
                group = (name.namespace, name.shard, len(self.records.raw[self.places[name]]))
                batch = batches.setdefault(group, FoundBatch(*group, []))
                batch.blocks.append(FoundBlock(name.key, name.parent, 0))
            after = _sort_key(names[-1])
            yield list(batches.values())


def _perhaps_damaged(footer: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(footer)
    if chance.random() < 0.3:
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _sort_key(name: BlockName) -> bytes:
    return name.namespace + name.shard.to_bytes(4, "big") + name.key + name.parent
