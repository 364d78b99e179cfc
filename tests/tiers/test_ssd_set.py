"""Which directories make one set: decided from markers alone, and carried out on real directories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.stripe_set import MARKER_VERSION, Marker, SetPlan, plan_set
from tests.tiers.contract import KIB, Frames, block, opened, places_of, write_all

PATHS = [Path("/a"), Path("/b"), Path("/c")]


def marker(name: str, generation: int = 1, members: str = "ab", stripe_set: str = "set") -> Marker:
    return Marker("flexkv-ssd", MARKER_VERSION, name, stripe_set, generation, tuple(members))


def old_marker(name: str, count: int = 2) -> Marker:
    """One without a list: how many directories its set has is all it says of the others."""
    return Marker("flexkv-ssd", 2, name, "set", count=count)


def plan(*markers: Marker | None, forget: bool = False) -> SetPlan:
    fresh = count(1)
    paths = PATHS[: len(markers)]
    return plan_set(paths, markers, forget_missing=forget, new_id=lambda: f"new{next(fresh)}")


def refusal(*markers: Marker | None, forget: bool = False) -> FlexKVError:
    with pytest.raises(FlexKVError) as caught:
        plan(*markers, forget=forget)
    return caught.value


def test_a_whole_set_is_left_as_it_is_in_any_order() -> None:
    """Disks that changed names between two starts still hold what they held: nothing is written."""
    for markers in ([marker("a"), marker("b")], [marker("b"), marker("a")]):
        whole = plan(*markers)
        assert (set(whole.ids), whole.generation, whole.is_changed) == ({"a", "b"}, 1, False)


def test_a_directory_may_join_while_all_others_are_there() -> None:
    """It gets an id, the list grows, and the generation with it."""
    grown = plan(marker("a"), marker("b"), None)
    assert grown.ids == ("a", "b", "new1")
    assert (grown.generation, grown.is_changed, grown.forgotten_count) == (2, True, 0)


@pytest.mark.parametrize(
    ("markers", "ids"),
    [((marker("a"), None), ("a", "new1")), ((None, marker("b")), ("new1", "b")), ((marker("a"),), ("a",))],
    ids=["second empty", "first empty", "second not listed"],
)
def test_a_missing_member_is_refused_or_forgotten(markers: tuple[Marker | None, ...], ids: tuple[str, ...]) -> None:
    """By default nobody starts without it; told to forget, the next list names others."""
    assert refusal(*markers).code is ErrorCode.DIRECTORY_MISSING
    told = plan(*markers, forget=True)
    assert (told.ids, told.generation, told.forgotten_count) == (ids, 2, 1)


def test_one_left_out_is_out_of_date_whatever_it_holds() -> None:
    """It is named before what is missing in its place; told to forget, it is emptied and joins under another id."""
    back = marker("a", 2, "ax"), marker("b")
    assert refusal(*back).code is ErrorCode.DIRECTORY_OUTDATED
    told = plan(*back, forget=True)
    assert told.outdated == (PATHS[1],)
    assert told.ids == ("a", "new1")
    assert told.generation == 3


@pytest.mark.parametrize(
    "markers",
    [
        (marker("a", 2, "ax"), marker("b", 2, "yb")),
        (marker("a", 2, "ax"), marker("b", 4, "zb")),
        (marker("a", 2, "abx", "set"), marker("b", 2, "abx"), marker("c", 2, "yzc")),
    ],
    ids=["equally old", "one later", "two and one"],
)
def test_two_parts_that_went_on_apart_are_never_joined(markers: tuple[Marker, ...]) -> None:
    """A generation counts changes, not time: which part missed a reset, it does not say."""
    for forget in (False, True):
        error = refusal(*markers, forget=forget)
        assert error.code is ErrorCode.DIRECTORY_OUTDATED
        assert "nobody can tell" in error.message


@pytest.mark.parametrize("written", range(4))
def test_a_first_start_can_be_killed_between_any_two_markers(written: int) -> None:
    """Ids first, then lists: whatever of it was written, the next start takes the set for whole."""
    steps = [(0, marker("a", 0, "")), (1, marker("b", 0, "")), (0, marker("a")), (1, marker("b"))]
    markers: list[Marker | None] = [None, None]
    for at, each in steps[: written + 1]:
        markers[at] = each
    told = plan(*markers)
    assert told.ids[0] == "a"
    assert (told.generation, told.forgotten_count, told.outdated) == (1, 0, ())
    assert told.is_changed == (written < 3)


@pytest.mark.parametrize("written", range(4))
def test_going_on_without_one_can_be_killed_between_any_two_markers(written: int) -> None:
    """Those that are there keep what they hold, and the old one stays out of date."""
    steps = [
        (2, marker("x", 0, "")),
        (0, marker("a", 2, "abx")),
        (1, marker("b", 2, "abx")),
        (2, marker("x", 2, "abx")),
    ]
    markers: list[Marker | None] = [marker("a", 1, "abc"), marker("b", 1, "abc"), None]
    for at, each in steps[: written + 1]:
        markers[at] = each
    told = plan(*markers, forget=True)
    assert told.ids[:2] == ("a", "b")
    assert told.outdated == ()
    if written:
        assert refusal(markers[0], markers[1], marker("c", 1, "abc")).code is ErrorCode.DIRECTORY_OUTDATED


def test_a_whole_set_without_a_list_gets_one() -> None:
    """Markers of before there were lists, in either order: both keep what they hold, and are written anew."""
    told = plan(old_marker("b"), old_marker("a"))
    assert (told.ids, told.generation, told.is_changed, told.outdated) == (("b", "a"), 1, True, ())
    assert plan(marker("a"), old_marker("b")).ids == ("a", "b")  # killed in between


@pytest.mark.parametrize("markers", [(old_marker("a"), None), (None, old_marker("a")), (old_marker("a"),)])
def test_a_marker_without_a_list_misses_those_it_counts(markers: tuple[Marker | None, ...]) -> None:
    """An unmounted disk is noticed at an upgrade too; told to forget, the other is out of date when it is back."""
    refused = refusal(*markers)
    assert refused.code is ErrorCode.DIRECTORY_MISSING
    assert "of the 2 directories" in refused.message
    told = plan(*markers, forget=True)
    assert (told.generation, told.forgotten_count) == (1, 1)
    back = marker("a", 1, "a"), old_marker("b")
    assert refusal(*back).code is ErrorCode.DIRECTORY_OUTDATED
    assert plan(*back, forget=True).outdated == (PATHS[1],)


def test_more_directories_than_a_marker_counts_went_on_apart() -> None:
    """Before there were lists an empty directory silently took a missing one's place: which is right, nobody knows."""
    error = refusal(old_marker("a"), old_marker("b"), old_marker("c"), forget=True)
    assert error.code is ErrorCode.DIRECTORY_OUTDATED
    assert "nobody can tell" in error.message


def test_members_of_two_sets_and_copies_are_foreign() -> None:
    """What belongs elsewhere, or is there twice, is told apart."""
    assert "of set" in refusal(marker("a"), marker("b", stripe_set="other")).message
    copied = refusal(marker("a"), marker("a"))
    assert copied.code is ErrorCode.DIRECTORY_FOREIGN
    assert "a copy of /a" in copied.message


def store_in(directories: Sequence[Path], frames: Frames, **options: object) -> SsdStore:
    settings = {"segment_bytes": 128 * KIB, "reserve_bytes": 0} | options
    return SsdStore(directories, 1024 * KIB * len(directories), frames.arena, **settings)


def life(store: SsdStore, frames: Frames, numbers: range = range(0)) -> int:
    """Start, write blocks, close; how many were found."""

    async def run() -> int:
        async with opened(store):
            found = places_of([batch async for batch in store.found()])
            for number in numbers:
                await write_all(store, frames, [block(number)])
            return len(found)

    return asyncio.run(run())


def test_directories_of_a_set_may_be_listed_in_any_order_and_more_may_join(tmp_path: Path, frames: Frames) -> None:
    """All records are found either way; a set without the new one is then not whole."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert life(store_in([first, second], frames), frames, range(10)) == 0
    assert life(store_in([second, first], frames), frames) == 10
    assert life(store_in([third, second, first], frames), frames, range(10, 20)) == 10
    assert life(store_in([first, second, third], frames), frames) == 20
    with pytest.raises(FlexKVError) as caught:
        life(store_in([first, second], frames), frames)
    assert caught.value.code is ErrorCode.DIRECTORY_MISSING


OLD_MARKERS = [
    b'{"format":"flexkv-ssd","version":2,"id":"%s","stripe_set":"%s","position":%d,"count":2}'
    % (its_id, b"5e" * 16, at)
    for at, its_id in enumerate((b"a1" * 16, b"b2" * 16))
]
"""As a flexkvd wrote them that knew no lists of members."""


def test_a_set_of_two_is_upgraded_whole_or_not_at_all(
    tmp_path: Path, frames: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    """One away: refused, nothing is filled in its place. Both there: every record is found, the markers get a list."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, raw in zip(paths, OLD_MARKERS, strict=True):
        path.mkdir()
        (path / "flexkv.json").write_bytes(raw)
    assert life(store_in(paths, frames), frames, range(20)) == 0
    for path, raw in zip(paths, OLD_MARKERS, strict=True):
        (path / "flexkv.json").write_bytes(raw)
    (tmp_path / "mount").mkdir()
    for listed in ([paths[0], tmp_path / "mount"], paths[:1], paths[1:]):
        with pytest.raises(FlexKVError) as caught:
            life(store_in(listed, frames), frames)
        assert caught.value.code is ErrorCode.DIRECTORY_MISSING
    assert list((tmp_path / "mount").iterdir()) == []
    assert life(store_in(paths[::-1], frames), frames) == 20
    assert b'"version":3' in (paths[0] / "flexkv.json").read_bytes()
    (paths[1] / "flexkv.json").write_bytes(OLD_MARKERS[1])
    left = life(store_in(paths[:1], frames, forget_missing=True), frames)
    assert 0 < left < 20
    assert "emptied" not in caplog.text
    assert life(store_in(paths, frames, forget_missing=True), frames) == left
    assert f"{paths[1]} is emptied" in caplog.text


def test_a_new_disk_takes_the_place_of_a_lost_one(tmp_path: Path, frames: Frames) -> None:
    """Told to forget, the tier goes on with an empty directory where another was: what lay on the others is served."""
    a, b, c = (tmp_path / name for name in "abc")
    life(store_in([a, b], frames), frames, range(20))
    left = life(store_in([a, c], frames, forget_missing=True), frames)
    assert 0 < left < 20
    assert life(store_in([a, c], frames), frames) == left


@pytest.mark.parametrize("listed", [("a", "a/"), ("a", "a/b"), ("a/b", "a"), ("a", "link")])
def test_directories_within_each_other_are_refused(tmp_path: Path, frames: Frames, listed: tuple[str, str]) -> None:
    """One directory under two names, or one inside another, cannot be two disks: told before anything is made."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(FlexKVError) as caught:
        life(store_in([tmp_path / name for name in listed], frames), frames)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert "each apart from the others" in caught.value.message
    assert list((tmp_path / "a").iterdir()) == []


def test_a_copy_of_a_member_is_refused(tmp_path: Path, frames: Frames) -> None:
    """A backup that was put beside the original is no second disk."""
    life(store_in([tmp_path / "a"], frames), frames)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(FlexKVError, match="is a copy of"):
        life(store_in([tmp_path / "a", tmp_path / "copy"], frames), frames)
