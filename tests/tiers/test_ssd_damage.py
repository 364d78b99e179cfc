"""Damage to everything of a segment that is not a record, met by a restart and by `flexkv verify`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.verify import SegmentReport, verify_directory
from flexkvd.cli import main
from tests.tiers.contract import KIB, Frames, assert_readable, block, drain, fault_of_read, opened, places_of, write_all
from tests.tiers.segment_files import Place, records, regions

SEGMENT_BYTES = 128 * KIB
"""Holds six of the contract's small records."""
NAMES = [block(number) for number in range(14)]
DROPPED = NAMES[1:3]
REGIONS = ["segment header", "dead map", "footer", "trailer"]


@pytest.fixture
def directory(tmp_path: Path, frames: Frames) -> Path:
    """Three segments, the first two full, two records dropped; closed cleanly, so all are sealed."""

    async def life() -> None:
        async with opened(store_in(tmp_path / "tier", frames)) as store:
            places = {}
            for name in NAMES:
                places |= await write_all(store, frames, [name])
            for name in DROPPED:
                await store.drop(name, places[name])

    asyncio.run(life())
    return tmp_path / "tier"


def store_in(directory: Path, frames: Frames) -> SsdStore:
    return SsdStore(directory, 8 * SEGMENT_BYTES, frames.arena, segment_bytes=SEGMENT_BYTES, reserve_bytes=0)


def look(directory: Path, frames: Frames) -> tuple[set[BlockName], dict[str, object]]:
    """A life: what is served of what is found, and the status; whatever is not served must be a counted CORRUPT."""

    async def life() -> tuple[set[BlockName], dict[str, object]]:
        async with opened(store_in(directory, frames)) as store:
            found = places_of([batch async for batch in store.found()])
            served = set()
            for name, location in found.items():
                target = frames.take((8 * KIB, 4 * KIB))
                try:
                    await drain(store, name, location, target)
                except Exception:
                    assert await fault_of_read(store, frames, name, location) is Fault.CORRUPT
                else:
                    await assert_readable(store, frames, name, location)
                    served.add(name)
            places = await write_all(store, frames, [block(500)])
            await assert_readable(store, frames, block(500), places[block(500)])
            status = store.status()
            await store.drop(block(500), places[block(500)])
            return served, status

    return asyncio.run(life())


def first_segment(directory: Path) -> Path:
    return directory / "segment-000001.kv"


def first_records(directory: Path) -> set[BlockName]:
    return {name for name, place in records(directory) if place.path == first_segment(directory)}


def flip(place: Place) -> None:
    place.flip(place.length - 1 if place.length == 4 * KIB else 40)


def zero(place: Place) -> None:
    place.write(bytes(place.length))


def swap(place: Place) -> None:
    """The same region of the second segment in its place."""
    other = regions(place.path.with_name("segment-000002.kv"))
    [name] = [name for name, each in regions(place.path).items() if each == place]
    place.write(other[name].read()[: place.length])


@pytest.mark.parametrize("damage", [flip, zero, swap])
@pytest.mark.parametrize("region", REGIONS)
def test_a_damaged_region_loses_at_most_its_segment(
    directory: Path,
    frames: Frames,
    region: str,
    damage: Callable[[Place], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Never a wrong byte, never a dropped record again; header and map lose the segment, a footer nothing; counted and
    in the log.
    """
    own = first_records(directory)
    everything = set(NAMES) - set(DROPPED)
    damage(regions(first_segment(directory))[region])
    served, status = look(directory, frames)
    one_copy = region == "dead map" and damage is flip
    lost = own if region in ("segment header", "dead map") and not one_copy else set()
    assert served == everything - lost
    causes = {"segment header": "found_headers_damaged", "dead map": "found_maps_damaged"}
    never_sealed = region == "trailer" and damage in (zero, swap)  # a zeroed or foreign trailer is one never written
    cause = causes.get(region, "found_footers_damaged")
    assert status[cause] == (0 if one_copy or never_sealed else 1)
    assert (f"{cause} 1" in caplog.text) == (status[cause] == 1)
    assert look(directory, frames)[0] == served  # and so it stays


def test_a_segment_in_another_ones_place_is_not_believed(directory: Path, frames: Frames) -> None:
    """A file copied over its neighbour, or in from another directory, is no segment of this place."""
    shutil.copyfile(first_segment(directory), directory / "segment-000002.kv")
    served, status = look(directory, frames)
    assert first_records(directory) <= served
    assert status["found_headers_damaged"] == 1


@pytest.mark.parametrize("keep", [0, 8 * KIB, SEGMENT_BYTES // 2, SEGMENT_BYTES - 1])
def test_a_truncated_segment_serves_what_is_whole(directory: Path, frames: Frames, keep: int) -> None:
    """What lies before the cut is served, the rest is a miss, and the file is made whole before it is used again."""
    places = {name: place for name, place in records(directory) if place.path == first_segment(directory)}
    os.truncate(first_segment(directory), keep)
    served, status = look(directory, frames)
    whole = {name for name, place in places.items() if place.offset + place.length <= keep and keep > 12 * KIB}
    assert served & set(places) == whole
    assert sum(count for name, count in status.items() if name.endswith("_damaged") and "found" in name) == 1


def verified(directory: Path) -> list[SegmentReport]:
    async def run() -> list[SegmentReport]:
        return [report async for report in verify_directory(directory)]

    return asyncio.run(run())


def test_verify_finds_a_sound_directory_sound(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is counted once, as whole or dropped; exit status 0; nothing is changed."""
    before = {path: path.read_bytes() for path in directory.glob("*.kv")}
    assert main(["verify", str(directory)]) == 0
    assert "12 records whole" in capsys.readouterr().out
    reports = verified(directory)
    assert [report.state for report in reports] == ["sealed"] * 3
    assert sum(report.whole for report in reports) == len(NAMES) - len(DROPPED)
    assert {path: path.read_bytes() for path in directory.glob("*.kv")} == before


def test_verify_names_every_damage_by_its_cause(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Record header, chunk, footer, map, segment header, cut-off end: each counted under its name; exit status 1."""
    places = dict(records(directory))
    places[block(3)].flip(50)
    places[block(4)].flip(5000)
    assert main(["verify", "--json", str(directory)]) == 1
    told = json.loads(capsys.readouterr().out)["total"]
    assert told["damaged"] == {"record header": 1, "chunk": 1}
    assert told["whole"] == len(NAMES) - len(DROPPED) - 2
    flip(regions(directory / "segment-000002.kv")["footer"])
    zero(regions(directory / "segment-000003.kv")["dead map"])
    assert main(["verify", "--json", str(directory)]) == 1
    told = json.loads(capsys.readouterr().out)["total"]["damaged"]
    assert told == {"record header": 1, "chunk": 1, "footer": 1, "dead map": 1}
    flip(regions(first_segment(directory))["segment header"])
    os.truncate(directory / "segment-000002.kv", SEGMENT_BYTES // 2)
    assert main(["verify", "--json", str(directory)]) == 1
    told = json.loads(capsys.readouterr().out)["total"]["damaged"]
    assert told.keys() >= {"segment header", "segment length", "dead map"}


def test_verify_refuses_a_directory_in_use_or_of_somebody_else(
    directory: Path, frames: Frames, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running daemon's directory is locked, a foreign one is not touched, a missing one is named: exit status 2."""

    async def scene() -> None:
        async with opened(store_in(directory, frames)):
            with pytest.raises(FlexKVError) as caught:
                await anext(verify_directory(directory))
            assert caught.value.code is ErrorCode.DIRECTORY_LOCKED

    asyncio.run(scene())
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("the only copy")
    for other in (tmp_path / "foreign", tmp_path / "nothing"):
        assert main(["verify", str(other)]) == 2
        assert str(other) in capsys.readouterr().err
    assert os.listdir(tmp_path / "foreign") == ["thesis.txt"]
