"""A daemon whose SSD set lacks a directory: a disk that was not mounted, and comes back after a reset."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_lives import until

COUNT = 24
TOKENS = list(range(16 * COUNT))


class Disks:
    """Two directories of one set, the second on a disk that can be unmounted."""

    def __init__(self, folder: Path, start: Callable[..., DaemonThread]) -> None:
        self.mounts = [folder / "mnt" / name for name in "ab"]
        self._aside = folder / "aside"
        self._start = start

    def start(self, missing: str = "refuse", mounts: Iterable[Path] = ()) -> DaemonThread:
        directories = [str(mount) for mount in mounts or self.mounts]
        return self._start(ssd={"directory": directories, "bytes": "64MiB", "missing_directory": missing})

    def fill(self) -> None:
        """A life in which blocks come to lie on both."""
        daemon = self.start()
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client)
            for at in range(COUNT):  # one by one, so that they take turns
                parent, key = [ROOT, *client.keys(TOKENS)][at : at + 2]
                client.save([key], worker.pages(at, 1), worker.memory, parent=parent, ack="ssd").wait(timeout_s=5)
        assert all(records(daemon))
        assert daemon.stop() == 0

    def unmount(self) -> None:
        """An empty mount point is left."""
        os.rename(self.mounts[1], self._aside)
        self.mounts[1].mkdir()

    def mount(self) -> None:
        """The disk is back, over whatever was put into the mount point meanwhile."""
        os.rename(self.mounts[1], self._aside.with_name("under the mount"))
        os.rename(self._aside, self.mounts[1])


@pytest.fixture
def disks(tmp_path: Path, start: Callable[..., DaemonThread]) -> Disks:
    made = Disks(tmp_path, start)
    made.fill()
    return made


def ssd_status(daemon: DaemonThread) -> dict[str, Any]:
    """What the SSD tier says of itself once everything is read in."""
    until(lambda: bool(daemon.call(lambda: daemon.parts.readiness.ready)))
    status: dict[str, Any] = daemon.call(daemon.parts.stores[Tier.SSD][0].status)
    return status


def records(daemon: DaemonThread) -> list[int]:
    """Bytes of live records in each directory."""
    return [each["live_bytes"] for each in ssd_status(daemon)["directories"]]


def refusal(disks: Disks, missing: str = "refuse", mounts: Iterable[Path] = ()) -> FlexKVError:
    with pytest.raises(FlexKVError) as caught:
        disks.start(missing, mounts)
    return caught.value


def test_a_start_without_a_directory_is_refused_and_nothing_is_lost_by_it(disks: Disks) -> None:
    """An empty mount point, and one that is not listed: coded, named, untouched; mounted again, all is served."""
    disks.unmount()
    error = refusal(disks)
    assert error.code is ErrorCode.DIRECTORY_MISSING
    assert str(disks.mounts[1]) in error.message
    assert 'missing_directory = "forget"' in error.message
    assert os.listdir(disks.mounts[1]) == []
    assert refusal(disks, mounts=disks.mounts[:1]).code is ErrorCode.DIRECTORY_MISSING
    disks.mount()
    daemon = disks.start()
    assert ssd_status(daemon)["records"] == COUNT
    with Client(daemon.socket, GEOMETRY) as client:
        assert client.match(client.keys(TOKENS)).length == COUNT


@pytest.mark.parametrize("listed", [1, 2], ids=["taken out of the list", "empty mount point"])
def test_what_was_missing_during_a_reset_never_comes_back(disks: Disks, listed: int) -> None:
    """Told to forget, a daemon goes on and resets; the old disk, put back, is refused, or emptied if told to forget."""
    disks.unmount()
    daemon = disks.start("forget", disks.mounts[:listed])
    assert 0 < ssd_status(daemon)["records"] < COUNT
    with Client(daemon.socket, GEOMETRY) as client:
        client.reset(0)
    assert ssd_status(daemon)["records"] == 0
    assert daemon.stop() == 0
    disks.mount()
    error = refusal(disks)
    assert error.code is ErrorCode.DIRECTORY_OUTDATED
    assert str(disks.mounts[1]) in error.message
    for missing in ("forget", "refuse"):  # once it is emptied, the set is whole
        daemon = disks.start(missing)
        assert ssd_status(daemon)["records"] == ssd_status(daemon)["found_headers_damaged"] == 0
        with Client(daemon.socket, GEOMETRY) as client:
            assert client.match(client.keys(TOKENS)).length == 0
        assert daemon.stop() == 0


def test_parts_of_a_set_that_went_on_apart_are_not_put_together(disks: Disks) -> None:
    """Each lived without the other, so either may have missed a reset: refused, even if told to forget."""
    for mount in disks.mounts:
        assert disks.start("forget", [mount]).stop() == 0
    for missing in ("refuse", "forget"):
        error = refusal(disks, missing)
        assert error.code is ErrorCode.DIRECTORY_OUTDATED
        assert "went on without each other" in error.message
