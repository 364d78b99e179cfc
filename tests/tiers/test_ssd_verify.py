"""`flexkv verify` looks only: nothing is made, nothing is changed, and no right to write is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.verify import verify_directory
from flexkvd.cli import main
from tests.tiers.contract import KIB, Frames, block, opened, write_all
from tests.tiers.small_disk import switchable
from tests.tiers.test_ssd_directory import digest

COUNT = 8
TOTAL_KEYS = {"segments", "whole", "whole_bytes", "dead", "damaged"}
SEGMENT_KEYS = {"directory", "segment", "state", "whole", "dead", "whole_bytes", "damaged"}


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
    assert all(f"`{key}`" in document for key in TOTAL_KEYS | SEGMENT_KEYS)


def test_verify_reads_a_read_only_disk(tmp_path: Path, frames: Frames, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is opened to be written: a disk mounted read-only is checked like any other."""
    with switchable(tmp_path) as switch:
        directory = fill(switch.directory / "tier", frames)
        switch.read_only()
        assert main(["verify", str(directory)]) == 0
    assert f"{COUNT} records whole" in capsys.readouterr().out


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
