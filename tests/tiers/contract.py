"""The promises every tier below DRAM keeps, as one suite; `test_contract.py` runs it on each store."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.keys import ROOT, NamespaceDigest, key_of_hash
from flexkv_tiers.base import FoundBatch, FrameSpan, TierFault, TierStore, VerifiableStore
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.memory import Arena
from tests.tiers.backings import Backing

KIB = 1024
LAYOUTS = [(4 * KIB,), (8 * KIB, 4 * KIB, 12 * KIB), (64 * KIB,) * 8]
SMALL = (8 * KIB, 4 * KIB)


def namespace(number: int = 1) -> NamespaceDigest:
    return NamespaceDigest(number.to_bytes(32, "little"))


def block(number: int, *, space: int = 1, shard: int = 0) -> BlockName:
    """A block of its own for every number; it follows the one before it."""
    parent = key_of_hash(namespace(space), ROOT, b"%d" % (number - 1)) if number else ROOT
    return BlockName(namespace(space), shard, key_of_hash(namespace(space), ROOT, b"%d" % number), parent)


def content(name: BlockName, lengths: Sequence[int]) -> list[bytes]:
    """The bytes of a block: a function of its whole name, so that nobody else's can pass for them.

    Hexadecimal digits: a codec that is on halves them.
    """
    chance = random.Random(repr(name))
    return [chance.randbytes(length // 2).hex().encode() for length in lengths]


class Frames:
    """An arena and the frames a test has taken from it, one after the other."""

    def __init__(self) -> None:
        self.arena = Arena(32 << 20, 1, huge_pages=False)
        self._next = 0

    def take(self, lengths: Sequence[int]) -> list[FrameSpan]:
        spans = []
        for length in lengths:
            spans.append(FrameSpan(self._next, length))
            self._next += length // (4 * KIB)
        return spans

    def fill(self, name: BlockName, lengths: Sequence[int]) -> list[FrameSpan]:
        """Frames with this block's content and checksums, as a save leaves them."""
        spans = self.take(lengths)
        for number, (span, data) in enumerate(zip(spans, content(name, lengths), strict=True)):
            self.arena.view(span.frame, span.length)[:] = data
            self.arena.set_checksum(span.frame, chunk_checksum(name.key, number, data))
        return spans

    def rewind(self) -> None:
        """Take the same frames again: nobody uses them any more."""
        self._next = 0

    def bytes_of(self, spans: Sequence[FrameSpan]) -> list[bytes]:
        return [bytes(self.arena.view(span.frame, span.length)) for span in spans]


class TierContract:
    """Needs the fixtures `backing` and `frames`."""

    @pytest.mark.parametrize("lengths", LAYOUTS, ids=str)
    def test_what_was_written_is_read_back(self, backing, frames, lengths):
        """A record comes back byte for byte, chunk by chunk in order, with its checksums in the arena."""

        async def scene(store: TierStore) -> None:
            source = frames.fill(block(1), lengths)
            location = await store.write(block(1), source)
            target = frames.take(lengths)
            landed = []
            async for chunk in store.read(block(1), location, target):
                landed.append(chunk)
                assert frames.bytes_of(target)[chunk] == content(block(1), lengths)[chunk]
            assert landed == list(range(len(lengths)))
            assert [frames.arena.checksum(span.frame) for span in target] == [
                frames.arena.checksum(span.frame) for span in source
            ]

        live(backing, scene)

    @pytest.mark.parametrize("lengths", LAYOUTS[1:], ids=str)
    @pytest.mark.parametrize("wanted", [{1}, {0, 2}], ids=str)
    def test_only_wanted_chunks_are_touched(self, backing, frames, lengths, wanted):
        """Of a block whose other chunks are in DRAM, and being read there, just the missing ones come."""

        async def scene(store: TierStore) -> None:
            location = await store.write(block(1), frames.fill(block(1), lengths))
            target = frames.take(lengths)
            for number, span in enumerate(target):
                span.wanted = number in wanted
                frames.arena.view(span.frame, span.length)[:] = bytes(span.length)
            assert await drain(store, block(1), location, target) == sorted(wanted)
            for number, data in enumerate(content(block(1), lengths)):
                assert frames.bytes_of(target)[number] == (data if number in wanted else bytes(len(data)))

        live(backing, scene)

    def test_a_record_is_verified_where_it_lies(self, backing, frames):
        """Whole it passes; another block's, dropped, or saved with a checksum that does not hold, it is told."""

        async def scene(store: TierStore) -> None:
            if not isinstance(store, VerifiableStore):
                return  # records in memory lie nowhere
            places = await write_all(store, frames, [block(1), block(2)])
            await store.verify(block(1), places[block(1)], SMALL)
            assert await fault_of_verify(store, block(9), places[block(1)]) in (Fault.CORRUPT, Fault.MISSING)
            await store.drop(block(2), places[block(2)])
            assert await fault_of_verify(store, block(2), places[block(2)]) is Fault.MISSING
            if "Compress" not in type(backing).__name__:  # a compressed chunk's seal is made when it is written
                spans = frames.fill(block(3), SMALL)
                frames.arena.set_checksum(spans[1].frame, bytes(16))
                location = await store.write(block(3), spans)
                assert await fault_of_verify(store, block(3), location) is Fault.CORRUPT
            await store.verify(block(1), places[block(1)], SMALL)

        live(backing, scene)

    def test_what_was_dropped_is_missing(self, backing, frames):
        """After a drop the record is MISSING, its neighbour is not, and dropping again is no error."""

        async def scene(store: TierStore) -> None:
            places = await write_all(store, frames, [block(1), block(2)])
            await store.drop(block(1), places[block(1)])
            await store.drop(block(1), places[block(1)])
            assert await fault_of_read(store, frames, block(1), places[block(1)]) is Fault.MISSING
            await assert_readable(store, frames, block(2), places[block(2)])

        live(backing, scene)

    @pytest.mark.parametrize("other", [block(9), block(1, space=2), block(1, shard=1)], ids=["key", "space", "shard"])
    def test_another_block_is_never_read_from_a_location(self, backing, frames, other):
        """Asking for a block where another one lies is a fault, and harms the one that lies there in nothing."""

        async def scene(store: TierStore) -> None:
            places = await write_all(store, frames, [block(1)])
            fault = await fault_of_read(store, frames, other, places[block(1)])
            assert fault in (Fault.CORRUPT, Fault.MISSING)
            await assert_readable(store, frames, block(1), places[block(1)])

        live(backing, scene)

    def test_a_new_life_finds_what_was_acknowledged(self, backing, frames):
        """After reopening, every record is found once with parent and size and reads right; dropped ones are gone."""
        names = [block(at, space=space, shard=shard) for at in range(6) for space in (1, 2) for shard in (0, 1)]
        dropped = names[::5]

        async def first(store: TierStore) -> None:
            places = await write_all(store, frames, names)
            for name in dropped:
                await store.drop(name, places[name])

        async def second(store: TierStore) -> None:
            batches = [batch async for batch in store.found()]
            assert {batch.record_bytes for batch in batches} == {4 * KIB + sum(SMALL)}
            found = places_of(batches)
            assert sum(len(batch.blocks) for batch in batches) == len(found)
            assert set(found) == set(names) - set(dropped)
            for name, location in found.items():
                await assert_readable(store, frames, name, location)
            await store.drop(names[1], found[names[1]])

        async def third(store: TierStore) -> None:
            found = places_of([batch async for batch in store.found()])
            assert set(found) == set(names[2:]) - set(dropped)

        for scene in (first, second, third):
            live(backing, scene)

    def test_many_at_a_time(self, backing, frames):
        """Writers, readers and droppers side by side: each reads its own bytes, the end state is exact."""

        async def one(store: TierStore, number: int) -> tuple[BlockName, int] | None:
            name = block(number)
            lengths = SMALL if number % 2 else SMALL[::-1] * 2
            location = await store.write(name, frames.fill(name, lengths))
            await assert_readable(store, frames, name, location, lengths)
            if number % 3:
                return name, location
            await store.drop(name, location)
            return None

        async def scene(store: TierStore) -> None:
            kept = [pair for pair in await asyncio.gather(*(one(store, at) for at in range(48))) if pair]
            for name, location in kept:
                lengths = SMALL if any(name == block(at) for at in range(1, 48, 2)) else SMALL[::-1] * 2
                await assert_readable(store, frames, name, location, lengths)

        live(backing, scene)

    def test_full_is_a_fault_and_a_drop_makes_room(self, backing, frames):
        """At capacity a write faults FULL, everything acknowledged stays, and one drop makes room for one."""
        if backing.capacity_bytes is None:
            return  # a tier without an end has no such promise
        lengths = (256 * KIB,)

        async def scene(store: TierStore) -> None:
            places: dict[BlockName, int] = {}
            source = frames.take(lengths)
            for number in count():
                copy_into(frames, source, block(number), lengths)
                outcome = await fault_or_location(store, block(number), source)
                if isinstance(outcome, Fault):
                    break
                places[block(number)] = outcome
            assert outcome is Fault.FULL
            most = backing.capacity_bytes // (260 * KIB)
            assert most - 4 <= len(places) <= most  # a segment's end may stay unused
            for name, location in places.items():
                await assert_readable(store, frames, name, location, lengths)
            await store.drop(block(0), places.pop(block(0)))
            copy_into(frames, source, block(500), lengths)
            await assert_readable(store, frames, block(500), await store.write(block(500), source), lengths)

        live(backing, scene)

    def test_a_failed_write_leaves_nothing(self, backing, frames):
        """A write that faults is not found by a new life, and the next write works."""

        async def first(store: TierStore) -> None:
            await write_all(store, frames, [block(1)])
            with backing.failing_writes(), pytest.raises(TierFault):
                await store.write(block(2), frames.fill(block(2), SMALL))
            await write_all(store, frames, [block(3)])

        async def second(store: TierStore) -> None:
            assert set(places_of([batch async for batch in store.found()])) == {block(1), block(3)}

        live(backing, first)
        live(backing, second)

    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_a_cancelled_read_leaves_its_frames_alone(self, backing, frames, after):
        """Once a cancelled read has ended, its frames may have a new owner: nobody writes to them any more."""
        lengths = (64 * KIB,) * 8

        async def scene(store: TierStore) -> None:
            location = await store.write(block(1), frames.fill(block(1), lengths))
            target = frames.take(lengths)
            reading = asyncio.create_task(drain(store, block(1), location, target))
            for _ in range(after):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait((reading,))
            for span in target:
                frames.arena.view(span.frame, span.length)[:] = bytes(span.length)
            await asyncio.sleep(0.01)
            assert not any(any(data) for data in frames.bytes_of(target))
            await assert_readable(store, frames, block(1), location, lengths)

        live(backing, scene)

    @pytest.mark.parametrize("after", [1, 2, 3])
    def test_a_cancelled_write_never_has_wrong_bytes(self, backing, frames, after):
        """Frames reused right after a cancelled write change nothing that can be read later."""

        async def first(store: TierStore) -> None:
            source = frames.fill(block(1), SMALL)
            writing = asyncio.create_task(store.write(block(1), source))
            for _ in range(after):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait((writing,))
            copy_into(frames, source, block(2), SMALL)
            await store.write(block(2), source)

        async def second(store: TierStore) -> None:
            found = places_of([batch async for batch in store.found()])
            assert {block(2)} <= set(found) <= {block(1), block(2)}
            for name, location in found.items():
                await assert_readable(store, frames, name, location)

        live(backing, first)
        live(backing, second)

    def test_a_read_may_be_left_early(self, backing, frames):
        """A reader that needs only the first chunk may close the read; the record stays readable."""
        lengths = (16 * KIB,) * 4

        async def scene(store: TierStore) -> None:
            location = await store.write(block(1), frames.fill(block(1), lengths))
            reading = store.read(block(1), location, frames.take(lengths))
            assert await anext(reading) == 0
            await reading.aclose()
            await assert_readable(store, frames, block(1), location, lengths)

        live(backing, scene)

    def test_close_is_idempotent_and_final(self, backing, frames):
        """Closing twice is no error; a closed store faults DOWN on every move."""

        async def scene(store: TierStore) -> None:
            location = (await write_all(store, frames, [block(1)]))[block(1)]
            await store.close()
            await store.close()
            with pytest.raises(TierFault) as write_fault:
                await store.write(block(2), frames.fill(block(2), SMALL))
            with pytest.raises(TierFault) as drop_fault:
                await store.drop(block(1), location)
            assert write_fault.value.fault is drop_fault.value.fault is Fault.DOWN
            assert await fault_of_read(store, frames, block(1), location) is Fault.DOWN

        live(backing, scene)

    def test_close_waits_for_running_moves(self, backing, frames):
        """A write that runs while the store is closed either is acknowledged and found later, or faults."""
        outcomes: list[object] = []

        async def first(store: TierStore) -> None:
            names = [block(at) for at in range(8)]
            writing = [asyncio.create_task(store.write(name, frames.fill(name, SMALL))) for name in names]
            await asyncio.sleep(0)
            await store.close()
            outcomes.extend(await asyncio.gather(*writing, return_exceptions=True))

        async def second(store: TierStore) -> None:
            found = places_of([batch async for batch in store.found()])
            for number, outcome in enumerate(outcomes):
                assert isinstance(outcome, TierFault) or block(number) in found

        live(backing, first)
        live(backing, second)

    def test_status_is_plain_data(self, backing, frames):
        """The status can go out as JSON at any time of a store's life."""
        store = backing.store()

        async def scene(store: TierStore) -> None:
            json.dumps(store.status())
            await write_all(store, frames, [block(1)])
            json.dumps(store.status())

        json.dumps(store.status())
        live(backing, scene)


# ------------------------------------------------------------------ helpers


@asynccontextmanager
async def opened(store: TierStore):
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def live(backing: Backing, scene: Callable[[TierStore], Awaitable[None]]) -> None:
    """One life of the daemon: start, the scene, close."""

    async def life() -> None:
        async with opened(backing.store()) as store:
            await scene(store)

    asyncio.run(life())


async def write_all(store: TierStore, frames: Frames, names: Sequence[BlockName]) -> dict[BlockName, int]:
    locations = await asyncio.gather(*(store.write(name, frames.fill(name, SMALL)) for name in names))
    return dict(zip(names, locations, strict=True))


async def drain(store: TierStore, name: BlockName, location: int, target: Sequence[FrameSpan]) -> list[int]:
    return [chunk async for chunk in store.read(name, location, target)]


async def assert_readable(
    store: TierStore, frames: Frames, name: BlockName, location: int, lengths: Sequence[int] = SMALL
) -> None:
    target = frames.take(lengths)
    assert await drain(store, name, location, target) == list(range(len(lengths)))
    assert frames.bytes_of(target) == content(name, lengths)


async def fault_of_verify(store: VerifiableStore, name: BlockName, location: int) -> Fault | None:
    try:
        await store.verify(name, location, SMALL)
    except TierFault as fault:
        return fault.fault
    return None


async def fault_of_read(
    store: TierStore, frames: Frames, name: BlockName, location: int, lengths: Sequence[int] = SMALL
) -> Fault:
    with pytest.raises(TierFault) as caught:
        await drain(store, name, location, frames.take(lengths))
    return caught.value.fault


async def fault_or_location(store: TierStore, name: BlockName, source: Sequence[FrameSpan]) -> Fault | int:
    try:
        return await store.write(name, source)
    except TierFault as fault:
        return fault.fault


def copy_into(frames: Frames, target: Sequence[FrameSpan], name: BlockName, lengths: Sequence[int]) -> None:
    """Give frames that are already taken to another block."""
    for number, (span, data) in enumerate(zip(target, content(name, lengths), strict=True)):
        frames.arena.view(span.frame, span.length)[:] = data
        frames.arena.set_checksum(span.frame, chunk_checksum(name.key, number, data))


def places_of(batches: Sequence[FoundBatch]) -> dict[BlockName, int]:
    return {
        BlockName(batch.namespace, batch.shard, found.key, found.parent): found.location
        for batch in batches
        for found in batch.blocks
    }
