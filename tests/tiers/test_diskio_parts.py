"""Parts of disk I/O by themselves: who goes next, group syncs, scratch pages, the ring."""

from __future__ import annotations

import asyncio
import ctypes
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskFile, DiskFuture, IoPath
from flexkv_tiers.diskio.lineup import WRITE_BYTES_MAX, WRITES_UNTIL_CALM, Kind, Lineup
from flexkv_tiers.diskio.pages import KEPT_COUNT_MAX, PagePool
from flexkv_tiers.diskio.ring import NOP, Ring
from flexkv_tiers.diskio.syncs import GroupSyncs


@dataclass(frozen=True)
class Item:
    """What waits in a lineup."""

    kind: Kind
    number: int = 0
    bytes: int = 0


def fill(lineup: Lineup[Item]) -> list[Item]:
    """Take what may go."""
    taken = []
    while (item := lineup.take()) is not None:
        taken.append(item)
    return taken


def test_reads_go_first_then_syncs_then_writes():
    """Whatever order they came in, they are taken by precedence, and in order of asking within a kind."""
    lineup: Lineup[Item] = Lineup(100)
    items = [
        Item(kind, number) for number, kind in enumerate((Kind.WRITE, Kind.SMALL, Kind.READ, Kind.WRITE, Kind.READ))
    ]
    for item in items:
        lineup.add(item)
    taken = []
    while (item := lineup.take()) is not None:
        taken.append(item.number)
        lineup.end(item)
    assert taken == [2, 4, 1, 0, 3]


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 64])
def test_the_disk_is_never_given_more_than_it_should(depth):
    """At any mix at most `depth` are under way, writes of limited bytes, one beside reads; and none is lost."""
    chance = random.Random(depth)
    lineup: Lineup[Item] = Lineup(depth)
    running: list[Item] = []
    asked = taken = 0
    for turn in range(20_000):
        reads_share = (0, 1, 5)[turn // 500 % 3]
        if chance.random() < 0.5:
            kind = chance.choice([Kind.READ] * reads_share + [Kind.SMALL, Kind.WRITE])
            lineup.add(Item(kind, asked, chance.randrange(4 << 20) if kind is Kind.WRITE else 0))
            asked += 1
        elif running and chance.random() < 0.7:
            lineup.end(running.pop(chance.randrange(len(running))))
        while (item := lineup.take()) is not None:
            before = sum(other.bytes for other in running)
            running.append(item)
            taken += 1
            writing = sum(other.kind is not Kind.READ for other in running)
            assert len(running) <= depth
            assert writing <= max(1, depth - 1)
            if item.kind is not Kind.READ:
                assert before < WRITE_BYTES_MAX
                assert writing == 1 or writing == len(running)
        if lineup.waiting(Kind.READ):
            assert len(running) == depth
    assert asked == taken + sum(lineup.waiting(kind) for kind in Kind)


def test_writes_beside_reads_go_one_at_a_time_and_are_not_starved():
    """Reads without end take all places but one; once they have ceased, writes are many again, after a few."""
    lineup: Lineup[Item] = Lineup(8)
    read, write = Item(Kind.READ), Item(Kind.WRITE)
    for _ in range(40):
        lineup.add(read)
        lineup.add(write)
    assert fill(lineup) == [read] * 7 + [write]
    for _ in range(33):
        lineup.end(read)
        assert fill(lineup) == [read]
    for _ in range(7):
        lineup.end(read)
    for _ in range(WRITES_UNTIL_CALM - 1):
        assert fill(lineup) == []
        lineup.end(write)
        assert fill(lineup) == [write]
    lineup.end(write)
    assert fill(lineup) == [write] * 7


class Syncs:
    """Group syncs whose beginnings a test sees and whose ends it decides."""

    def __init__(self) -> None:
        self.begun: list[DiskFuture[None]] = []
        self.group = GroupSyncs(self._begin)

    def _begin(self, _: DiskFile) -> DiskFuture[None]:
        self.begun.append(DiskFuture())
        return self.begun[-1]


@pytest.fixture
def file(tmp_path):
    opened = DiskFile(tmp_path / "file", IoPath.DIRECT, create_bytes=4096)
    yield opened
    opened.close()


def test_one_sync_serves_all_who_asked_before_it_began(file):
    """Twenty who ask while one sync runs share the next, which begins after it: none takes part in the running one."""

    async def scene() -> None:
        syncs = Syncs()
        first, later = syncs.group.wait(file), [syncs.group.wait(file) for _ in range(20)]
        assert len(syncs.begun) == 1
        syncs.begun[0].set_result(None)
        await first
        assert len(syncs.begun) == 2
        assert not any(future.done() for future in later)
        syncs.begun[1].set_result(None)
        await asyncio.gather(*later)
        assert len(syncs.begun) == 2

    asyncio.run(scene())


def test_a_failed_sync_fails_all_who_waited_for_it_and_no_one_else(file):
    """Nobody takes another's failed sync for a success; the next sync is a new try."""

    async def scene() -> None:
        syncs = Syncs()
        waiting = [syncs.group.wait(file) for _ in range(3)]
        syncs.begun[0].set_exception(TierFault(Fault.IO, "disk"))
        await asyncio.sleep(0)
        syncs.begun[1].set_result(None)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [TierFault, type(None), type(None)]

    asyncio.run(scene())


def test_scratch_pages_are_aligned_distinct_and_used_again():
    """Areas begin on 4 KiB, no two borrowers share one, and a returned one is the next to be lent."""
    pool = PagePool()
    with pool.lend(1) as one, pool.lend(1) as other, pool.lend(3) as three:
        assert [len(area) for area in (one, other, three)] == [4096, 4096, 3 * 4096]
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in (one, other, three)]
        assert len(set(addresses)) == 3
        assert not any(address % 4096 for address in addresses)
    with pool.lend(1) as again:
        assert ctypes.addressof(ctypes.c_char.from_buffer(again)) in addresses
    assert KEPT_COUNT_MAX >= 8


def test_a_ring_turns_round_many_times():
    """Indices wrap: thousands of entries through four places all come back, each with its own token."""
    ring = Ring(4, 1)
    for turn in range(3_000):
        count = turn % 4 + 1
        for token in range(count):
            ring.prepare(NOP, -1, token)
        assert ring.enter()
        assert sorted(ring.reap()) == [(token, 0) for token in range(count)]
    ring.close()


def test_a_bad_descriptor_is_that_entry_s_result():
    """The kernel refuses one entry of a batch with its errno and carries the others out."""
    ring = Ring(4, 1)
    ring.prepare(NOP, -1, 0)
    ring.prepare_vector(1, -1, 1, [(0, 0)], offset=0, entry_flags=0, flags=0)
    ring.prepare(NOP, -1, 2)
    assert ring.enter()
    assert sorted(ring.reap()) == [(0, 0), (1, -9), (2, 0)]
    ring.close()


def test_a_half_made_file_is_removed(tmp_path):
    """A file whose room cannot be allocated does not stay behind."""
    with pytest.raises(OSError, match=r"File too large|No space"):
        DiskFile(Path(tmp_path / "file"), IoPath.DIRECT, create_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []
