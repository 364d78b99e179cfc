"""Contradictions between `[ssd]` and what lies on the disks: `--check-config` says what a start would say."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import SsdStore
from flexkvd import preflight
from flexkvd.config import Config
from tests.tiers.contract import Frames, block, opened, write_all
from tests.tiers.small_disk import mounted
from tests.tiers.test_ssd_directory import digest

from .test_preflight import config

MIB = 1 << 20
SSD = dict[str, object]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directories: the set of `a` and `b` with segments of 1 MiB, the set of `other` alone, and somebody's."""
    run([tmp_path / "a", tmp_path / "b"])
    run([tmp_path / "other"])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("the only copy")
    return tmp_path


def run(directories: Sequence[Path]) -> None:
    """A life of an SSD tier with a record in each directory."""

    async def life() -> None:
        frames = Frames()
        store = SsdStore(directories, 4 * MIB * len(directories), frames.arena, segment_bytes=MIB, reserve_bytes=0)
        async with opened(store):
            for number in range(8):
                await write_all(store, frames, [block(number)])

    asyncio.run(life())


def start(config: Config) -> FlexKVError | None:
    """What a start says to the same configuration."""
    assert config.ssd is not None
    arena = Arena(MIB, 1, huge_pages=False)

    async def life() -> None:
        wanted = preflight.ssd_wanted(config.ssd)
        store = SsdStore(
            wanted.directories,
            wanted.capacity_bytes,
            arena,
            segment_bytes=wanted.segment_bytes,
            reserve_bytes=wanted.reserve_bytes,
            forget_missing=wanted.forget_missing,
        )
        async with opened(store):
            pass

    try:
        asyncio.run(life())
    except FlexKVError as error:
        return error
    finally:
        arena.close()
    return None


CONTRADICTIONS: list[tuple[str, SSD, ErrorCode, str]] = [
    ("thesis", {}, ErrorCode.DIRECTORY_FOREIGN, "'thesis.txt' but no flexkv.json"),
    ("a", {}, ErrorCode.DIRECTORY_MISSING, "Mount its disk, or list it again"),
    ("a new", {}, ErrorCode.DIRECTORY_MISSING, 'missing_directory = "forget"'),
    ("a other", {}, ErrorCode.DIRECTORY_FOREIGN, "list the directories of one set"),
    ("a b b/inside", {}, ErrorCode.BAD_CONFIG, "each apart from the others"),
    ("a b link", {}, ErrorCode.BAD_CONFIG, "are one directory"),
    ("a b", {"segment_bytes": "2MiB"}, ErrorCode.BAD_CONFIG, "set it to 1048576 or 0"),
    ("a b", {"bytes": "2MiB"}, ErrorCode.BAD_CONFIG, "raise bytes to 4194304 or more"),
    ("new", {"segment_bytes": "9MiB"}, ErrorCode.BAD_CONFIG, "raise bytes to 18874368 or more, lower segment_bytes"),
    ("new", {"segment_bytes": 4096}, ErrorCode.BAD_CONFIG, "give at least 28672"),
    ("new", {"segment_bytes": 28672, "bytes": "1TiB"}, ErrorCode.BAD_CONFIG, "at most 4000 are allowed"),
    ("new", {"free_space_reserve_bytes": "1024TiB"}, ErrorCode.BAD_CONFIG, "nothing is left for the tier"),
    ("a b", {"free_space_reserve_bytes": "1024TiB"}, ErrorCode.BAD_CONFIG, "nothing is left for the tier"),
]


@pytest.mark.parametrize(("names", "changes", "code", "words"), CONTRADICTIONS)
def test_a_contradiction_is_found_by_looking_in_the_words_of_a_start(
    place: Path, names: str, changes: SSD, code: ErrorCode, words: str
) -> None:
    """The check has the code and the sentence, no file or directory is touched, and a start is refused alike."""
    (place / "link").symlink_to("a")
    told = config(place, ssd={"directory": [str(place / name) for name in names.split()], "bytes": "16MiB"} | changes)
    before = digest(place)
    [problem] = preflight.problems(told)
    assert problem.code is code
    assert words in problem.message
    assert digest(place) == before
    refused = start(told)
    assert refused is not None
    assert (refused.code, refused.message.split(":")[-1]) == (code, problem.message.split(":")[-1])


@pytest.mark.parametrize(
    ("names", "changes", "warned"),
    [
        ("a b", {}, []),
        ("b a", {}, []),
        ("a b new", {}, []),
        ("other", {"bytes": "4MiB"}, []),
        ("a", {"missing_directory": "forget"}, ["what 1 missing directories of the set held is given up for good"]),
    ],
)
def test_what_can_start_is_fine_and_untouched(place: Path, names: str, changes: SSD, warned: list[str]) -> None:
    """The whole set in any order, with one more, or less what may be forgotten: no problem, and then it starts."""
    told = config(place, ssd={"directory": [str(place / name) for name in names.split()], "bytes": "16MiB"} | changes)
    before = digest(place)
    assert preflight.problems(told) == []
    for words, warning in zip(warned, preflight.warnings(told), strict=True):
        assert words in warning
    assert digest(place) == before
    assert start(told) is None


def test_a_disk_without_room_for_one_segment_is_a_problem(tmp_path: Path) -> None:
    """An empty tier that could hold nothing does not start: the check says it with both figures."""
    with mounted("tmpfs", "size=4m", tmp_path) as disk:
        (disk / "ballast").write_bytes(bytes(3 * MIB + MIB // 2))
        told = config(tmp_path, ssd={"directory": str(disk / "ssd"), "bytes": "64MiB"})
        [problem] = preflight.problems(told)
        refused = start(told)
    assert refused is not None
    assert refused.code is problem.code is ErrorCode.DISK_FULL
    assert f"{MIB // 2} bytes are free, a first segment takes {MIB}" in problem.message
