"""Background tasks of the tiers: a bug that ends one is heard at once, and everybody who waited is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.diskio import open_disk_io
from flexkv_tiers.diskio.faulty import DiskFaultPlan, DiskOperation, DiskTrouble, FaultyIo
from flexkv_tiers.diskio.portable import AiofilesIo
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.deletes import DeleteBatches
from flexkv_tiers.s3.drops import PackDrops
from flexkv_tiers.s3.names import PackName
from flexkv_tiers.s3.packing import Packer, Record
from flexkv_tiers.s3.packs import PackTable, pack_index
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.mender import Mender
from flexkv_tiers.ssd.reclaim import Cleaner
from flexkv_tiers.ssd.roller import Roller
from flexkv_tiers.ssd.stripe import Stripe
from tests.tiers.contract import KIB, Frames, block

LENGTHS = (12 * KIB, 8 * KIB)
HEARD_S_MAX = 10.0


async def bug(*_: object, **__: object) -> Any:
    """What a planted bug does."""
    raise AssertionError("planted")


async def heard(scene: Callable[[], Awaitable[object]]) -> list[dict[str, Any]]:
    """What the loop's handler is told while `scene` runs, which has to be something about the planted bug."""
    told: list[dict[str, Any]] = []
    ears = asyncio.Event()

    def hear(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append(context)
        ears.set()

    asyncio.get_running_loop().set_exception_handler(hear)
    running = asyncio.ensure_future(scene())
    async with asyncio.timeout(HEARD_S_MAX):
        await ears.wait()
        with suppress(AssertionError):
            await running
    assert {str(context["exception"]) for context in told} == {"planted"}
    return told


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Cleaner, "_step"), (Roller, "_seal"), (Stripe, "_write_map_pages"), (Mender, "_ask_all")],
    ids=["reclaim", "seal", "drop", "mending"],
)
def test_a_bug_in_the_ssd_store_is_heard(
    tmp_path: Path, frames: Frames, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Whichever task of the store a bug ends, the loop hears of it while the store is open, and it still closes."""
    plan = DiskFaultPlan()
    store = SsdStore(
        tmp_path,
        8 * 64 * KIB,
        frames.arena,
        segment_bytes=64 * KIB,
        reserve_bytes=0,
        open_io=lambda place: FaultyIo(open_disk_io(place, "threads", 2, direct=True), plan),
    )
    source = frames.fill(block(1), LENGTHS)

    async def scene() -> None:
        if owner is not Mender:
            monkeypatch.setattr(owner, method, bug)
        location = await store.write(block(1), source)
        if owner is Mender:  # a failed write whose kill fails too is what it is woken for
            monkeypatch.setattr(owner, method, bug)
            plan.rates = {DiskOperation.SYNC: {DiskTrouble.ERROR: 1.0}}
            with pytest.raises(TierFault):
                await store.write(block(2), source)
            return
        for number in range(2, 5):  # enough to fill a segment, and to wake the cleaner
            await store.write(block(number), source)
        await store.drop(block(1), location)

    async def life() -> None:
        await store.start()
        assert await heard(scene)
        monkeypatch.undo()
        plan.rates = {}
        async with asyncio.timeout(HEARD_S_MAX):
            await store.close()

    asyncio.run(life())


def test_a_bug_in_the_s3_store_is_heard(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for uploads, deletes, drops and probes of a bucket, also when whoever asked has left."""

    async def scenes() -> None:
        record = Record(block(1), b"", [], 4 * KIB)
        await heard(lambda: Packer(bug, 1 << 20, 1).write(record))

        async def leave() -> None:
            asking = asyncio.create_task(DeleteBatches(bug).delete("name"))
            await asyncio.sleep(0)
            asking.cancel()

        await heard(leave)
        bucket = Bucket(S3Config("bucket", "prefix"), frames.arena, None, frames.arena.segment_fds)
        monkeypatch.setattr(Bucket, "_probe", bug)
        monkeypatch.setattr(PackDrops, "_mark", bug)

        async def go_down() -> None:
            bucket._go_down()

        await heard(go_down)
        table = PackTable()
        drops = PackDrops(bucket, "prefix", table)
        name = PackName(block(1).namespace, 0, 1, 1, 2)
        pack = table.add(name, pack_index(name, [block(1), block(2)], [8 * KIB, 8 * KIB]))
        pack.drop(1)
        await heard(lambda: drops.settle(pack))
        await bucket.close()

    asyncio.run(scenes())


def test_a_bug_in_a_byte_workers_supervisor_is_heard(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would bring the child back any more: the loop hears of it when the child dies."""

    async def scene() -> None:
        worker = ByteWorker(
            "tests.tiers.patient_worker",
            b"",
            segment_fds=frames.arena.segment_fds,
            segment_bytes=frames.arena.segment_bytes,
            threads=1,
            let_go_s=5.0,
        )
        bury = worker._bury

        async def bury_badly(child: Any) -> None:
            await bury(child)
            await bug()

        await worker.start()
        monkeypatch.setattr(worker, "_bury", bury_badly)

        async def kill() -> None:
            assert worker._child is not None
            worker._child.kill()

        await heard(kill)
        await worker.close()

    asyncio.run(scene())


def test_a_bug_in_an_engine_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of the aiofiles engine that dies is no secret."""

    async def scene() -> None:
        io = open_disk_io(tmp_path, "aiofiles", 2, direct=False)
        file = await io.run(lambda: io.open(tmp_path / "file", create_bytes=4 * KIB))
        monkeypatch.setattr(AiofilesIo, "_carry_out", bug)

        async def read() -> None:
            with io.pages(1) as memory:
                io.read(file, [memory], 0, lambda: None)

        await heard(read)
        file.close()

    asyncio.run(scene())


def test_a_fault_is_nobodys_business_and_a_cancelled_task_neither() -> None:
    """Only bugs go to the loop's handler; faults and ends of lives do not."""

    async def fault() -> None:
        raise TierFault(Fault.IO, "expected")

    async def scene() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        background = Background("a test")
        background.spawn(fault())
        background.spawn(asyncio.sleep(60))
        await asyncio.sleep(0)
        background.cancel()
        await background.settled()
        assert not told
        assert not background

    asyncio.run(scene())
