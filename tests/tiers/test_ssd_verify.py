"""`flexkv verify` looks only: nothing is made, nothing is changed, and no right to write is needed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.verify import verify_directory
from flexkvd.cli import main
from tests.tiers.contract import KIB, Frames, block, opened, write_all
from tests.tiers.segment_files import records, regions
from tests.tiers.small_disk import switchable
from tests.tiers.test_ssd_directory import digest

COUNT = 8
TOTAL_KEYS = {"segments", "whole", "whole_bytes", "dead", "damaged"}
SEGMENT_KEYS = {"directory", "segment", "state", "whole", "dead", "whole_bytes", "surplus_bytes", "damaged"}


def fill(directory: Path, frames: Frames) -> Path:
    """A tier's directory with COUNT records, closed cleanly."""

    async def life() -> None:
        async with opened(store_in(directory, frames)) as store:
            await write_all(store, frames, [block(number) for number in range(COUNT)])

    asyncio.run(life())
    return directory


def store_in(directory: Path, frames: Frames) -> SsdStore:
    return SsdStore(directory, 1024 * KIB, frames.arena, segment_bytes=128 * KIB, reserve_bytes=0)


def test_verify_leaves_no_trace_and_says_all_of_it(
    tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is made, changed or touched, even where `flexkv.lock` is gone; the keys of the JSON are as documented."""
    directory = fill(tmp_path / "tier", frames)
    (directory / "flexkv.lock").unlink()
    before = digest(directory)
    assert main(["verify", "--json", str(directory)]) == 0
    assert digest(directory) == before
    told = json.loads(capsys.readouterr().out)
    assert told["total"].keys() == TOTAL_KEYS
    assert all(segment.keys() == SEGMENT_KEYS for segment in told["segments"])
    assert told["total"]["whole"] == COUNT
    document = (Path(__file__).parents[2] / "docs/ssd-format.md").read_text()
    assert all(f"`{key}`" in document for key in TOTAL_KEYS | SEGMENT_KEYS | {"unchecked"})


def test_verify_reads_a_read_only_disk(tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is opened to be written: a disk mounted read-only is checked like any other."""
    with switchable(tmp_path) as switch:
        directory = fill(switch.directory / "tier", frames)
        switch.read_only()
        assert main(["verify", str(directory)]) == 0
    assert f"{COUNT} records whole" in capsys.readouterr().out


def fifo(place: Path) -> None:
    os.mkfifo(place)


def link(place: Path) -> None:
    place.symlink_to(place.with_name("moved"))


@pytest.mark.parametrize("put", [fifo, link, Path.mkdir])
def test_what_lies_in_a_segments_place_and_is_no_file_is_said(
    tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str], put: Callable[[Path], None]
) -> None:
    """A pipe, a link, a directory: nobody opens it, but its records are missing, so the exit status is 1."""
    directory = fill(tmp_path / "tier", frames)
    (directory / "segment-000001.kv").rename(directory / "moved")
    put(directory / "segment-000001.kv")
    assert main(["verify", str(directory)]) == 1
    assert "segment 000001: unknown, 0 whole, 0 dropped, damaged: not a file 1" in capsys.readouterr().out


def test_a_segment_without_a_footer_is_open_and_every_record_of_it_is_looked_at(
    tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a killed daemon leaves is told as such, and a record that is not whole is not passed over."""
    directory = fill(tmp_path / "tier", frames)
    trailer = regions(directory / "segment-000002.kv")["trailer"]
    trailer.write(bytes(trailer.length))
    assert main(["verify", str(directory)]) == 0
    assert "segment 000002: open, 2 whole, 0 dropped, nothing damaged" in capsys.readouterr().out
    *_, (_, last) = records(directory)
    last.flip(last.length - 1)
    assert main(["verify", str(directory)]) == 1
    assert "segment 000002: open, 1 whole, 0 dropped, damaged: torn record 1" in capsys.readouterr().out


def test_a_segment_longer_than_its_header_says_is_whole(
    tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon serves all of it and reads nothing behind its end: so it is said, and no damage."""
    directory = fill(tmp_path / "tier", frames)
    with (directory / "segment-000001.kv").open("ab") as file:
        file.write(bytes(4 * KIB))
    assert main(["verify", str(directory)]) == 0
    said = capsys.readouterr().out
    assert "nothing damaged, 4096 bytes behind its end, never read" in said
    assert f"{COUNT} records whole" in said

    async def life() -> int:
        async with opened(store_in(directory, frames)) as store:
            return sum([len(batch.blocks) async for batch in store.found()])

    assert asyncio.run(life()) == COUNT


def test_each_directory_is_checked_once_whatever_the_others_are(
    tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named twice it counts once; one that cannot be checked is told beside the others, with exit status 2."""
    directory = fill(tmp_path / "tier", frames)
    (tmp_path / "again").symlink_to(directory)
    listed = [str(tmp_path / "missing"), str(directory), f"{directory}/", str(tmp_path / "again")]
    assert main(["verify", *listed[1:]]) == 0
    assert f"{COUNT} records whole" in capsys.readouterr().out
    assert main(["verify", "--json", *listed]) == 2
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["total"]["whole"] == COUNT
    [unchecked] = told["unchecked"]
    assert unchecked["directory"] == listed[0]
    assert "[directory_unreadable]" in unchecked["error"]
    assert unchecked["error"] in said.err


def test_nobody_is_told_to_delete_what_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """For a directory without a marker, such as the root of all, the cure is to name another."""
    assert main(["verify", "/"]) == 2
    said = capsys.readouterr().err
    assert "name an empty directory, or one that an SSD tier uses" in said
    assert "delete" not in said


def test_verify_and_a_daemon_keep_each_other_out_but_not_a_second_verify(tmp_path: Path, frames: Frames) -> None:
    """While one reads, others may, and a start is refused with a word on who it may be."""
    directory = fill(tmp_path / "tier", frames)

    async def scene() -> None:
        reading = verify_directory(directory)
        await anext(reading)
        assert [report async for report in verify_directory(directory)]
        with pytest.raises(FlexKVError) as caught:
            await store_in(directory, frames).start()
        assert caught.value.code is ErrorCode.DIRECTORY_LOCKED
        await reading.aclose()
        async with opened(store_in(directory, frames)):
            with pytest.raises(FlexKVError) as caught:
                await anext(verify_directory(directory))
            assert caught.value.code is ErrorCode.DIRECTORY_LOCKED

    asyncio.run(scene())


def missing(place: Path) -> None:
    """Nothing is there."""


def a_file(place: Path) -> None:
    place.write_text("no directory")


def empty(place: Path) -> None:
    place.mkdir()


def foreign(place: Path) -> None:
    place.mkdir()
    (place / "thesis.txt").write_text("the only copy")


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (missing, ErrorCode.DIRECTORY_UNREADABLE, "No such file or directory): check the path"),
        (a_file, ErrorCode.DIRECTORY_UNREADABLE, "Not a directory): name the directory itself"),
        (empty, ErrorCode.DIRECTORY_FOREIGN, "no SSD tier has used it yet"),
        (foreign, ErrorCode.DIRECTORY_FOREIGN, "'thesis.txt' but no flexkv.json"),
    ],
)
def test_what_is_no_ssd_directory_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    code: ErrorCode,
    words: str,
) -> None:
    """Missing, a file, empty, somebody else's: each with its own sentence, exit status 2, and nothing is made."""
    make(tmp_path / "place")
    before = digest(tmp_path)
    assert main(["verify", str(tmp_path / "place")]) == 2
    said = capsys.readouterr().err
    assert f"[{code.value}]" in said
    assert words in said
    assert digest(tmp_path) == before
