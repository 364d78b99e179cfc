"""The two lower tiers as the simulator has them: real records that outlive the daemon and can be damaged.

`Disk` names places by number, as the SSD tier does; `Bucket` names objects by their block, as the S3
tier does, so a delete that comes late takes whatever has that name by then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from flexkv_py.core.messages import BlockName, Fault, FoundBlock, Tier
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.codec import HEADER_BYTES, pack_header, parse_header
from flexkv_tiers.fake import FakeRecords

PAGE_BLOCKS_MAX = 8
"""Records one batch of a recovery or listing tells of."""


class Store:
    """What both have in common; `places` maps each block to the location of its newest record."""

    tier: Tier

    def __init__(self, capacity_bytes: int) -> None:
        self.records = FakeRecords(capacity_bytes)
        self.places: dict[BlockName, int] = {}

    def write(self, block: BlockName, chunks: Sequence[bytes], checksums: Sequence[bytes]) -> int:
        location = self.places[block] = self.records.write(block, chunks, checksums)
        return location

    def holds(self, block: BlockName) -> bool:
        """Whether some record of this block is there, damaged or not."""
        return block in self.places

    def damage(self, chance: random.Random) -> list[BlockName]:
        """Flip, truncate, zero or swap records; returns the blocks that lost theirs."""
        names = [name for name, place in self.places.items() if len(self.records.raw[place]) > HEADER_BYTES]
        if not names:
            return []
        block = chance.choice(names)
        raw = self.records.raw[self.places[block]]
        how = chance.choice(("flip", "flip", "flip header", "truncate", "zero", "swap"))
        if how == "swap" and len(names) > 1:
            other = chance.choice([name for name in names if name != block])
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
        for start in range(0, len(locations), PAGE_BLOCKS_MAX):
            batches: dict[tuple[bytes, int, int], FoundBatch] = {}
            for location in locations[start : start + PAGE_BLOCKS_MAX]:
                raw = self.records.raw.get(location)
                if raw is None:
                    continue
                try:
                    header = parse_header(raw[:HEADER_BYTES])
                except TierFault:
                    self._erase(location)
                    continue
                block = header.block
                if block in seen:
                    self._erase(location)
                    continue
                seen.add(block)
                self.places.setdefault(block, location)
                group = (block.namespace, block.shard, header.record_bytes)
                cut = header.raw_bytes
                batch = batches.setdefault(group, FoundBatch(*group, [], cut))
                batch.blocks.append(FoundBlock(block.key, block.parent, location))
            yield list(batches.values())

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


def _sort_key(name: BlockName) -> bytes:
    return name.namespace + name.shard.to_bytes(4, "big") + name.key + name.parent
