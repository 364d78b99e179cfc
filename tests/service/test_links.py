"""Links: priority first, then arrival, never more on its way than configured, and nothing later than its deadline."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flexkv_py.core.messages import BlockName, MoveKind, Priority, StartMove, Tier
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkvd.links import STARTS_PER_TURN_MAX, Link, LinkLimits

from .virtual_loop import VirtualLoop

KIB = 1024
SECOND_NS = 1_000_000_000
Scene = Callable[[VirtualLoop], Coroutine[Any, Any, None]]


class Moves:
    """A link whose moves take a second each of virtual time, and what was seen of them."""

    def __init__(self, loop: VirtualLoop, count_max: int, bytes_max: int = 1, s_max: float = 100.0) -> None:
        limits = LinkLimits(count_max, bytes_max, s_max)
        self.link = Link("test", limits, self._carry, self._ended, loop, loop.now_ns)
        self.loop = loop
        self.take_s: dict[int, float] = {}
        self.begun: list[int] = []
        self.ended: dict[int, tuple[bool, bool]] = {}
        """By transfer: whether it was begun, and whether it was late."""
        self.most = 0
        self.settled = asyncio.Event()

    def submit(self, number: int, priority: Priority, length: int = 4 * KIB, deadline_ns: int = 0) -> None:
        block = BlockName(NamespaceDigest(b"n" * 16), 0, BlockKey(b"k" * 16), ROOT)
        kind = MoveKind.PROMOTE if deadline_ns else MoveKind.DEMOTE
        self.link.submit(StartMove(number, kind, Tier.SSD, block, 0, (0,), (length,), priority, deadline_ns))

    async def settle(self) -> None:
        self.settled.clear()
        await self.settled.wait()

    async def _carry(self, move: StartMove) -> int:
        self.begun.append(move.transfer)
        self.most = max(self.most, self.link.running)
        await asyncio.sleep(self.take_s.get(move.transfer, 1.0))
        return 0

    def _ended(self, move: StartMove, task: asyncio.Task[int] | None, late: bool) -> None:
        assert move.transfer not in self.ended, "a move ends once"
        self.ended[move.transfer] = (task is not None, late)
        if not self.link.running and not self.link.waiting:
            self.settled.set()


def play(scene: Scene) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await scene(loop)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_waiting_moves_go_by_priority_then_by_arrival() -> None:
    """With one move at a time, a load that arrives last overtakes every demotion that has not begun."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 1)
        moves.submit(1, Priority.DEMOTION)
        await asyncio.sleep(0.5)
        for number, priority in ((2, Priority.DEMOTION), (3, Priority.DEMOTION), (4, Priority.PREFETCH)):
            moves.submit(number, priority)
        moves.submit(5, Priority.LOAD)
        await moves.settle()
        assert moves.begun == [1, 5, 4, 2, 3]

    play(scene)


@pytest.mark.parametrize(
    ("length", "bytes_max", "most"),
    [(4 * KIB, 1, 3), (4 * KIB, 64 * KIB, 16), (8 * KIB * KIB, 64 * KIB, 3)],
    ids=["by number", "small blocks by bytes", "large blocks by number"],
)
def test_as_many_run_at_a_time_as_count_or_bytes_allow(length: int, bytes_max: int, most: int) -> None:
    """Forty moves on a link of three: three at a time, and more only while they are small; then none is left."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 3, bytes_max)
        for number in range(40):
            moves.submit(number, Priority.SAVE, length)
        await moves.settle()
        assert moves.most == most
        assert moves.ended == dict.fromkeys(range(40), (True, False))
        assert (moves.link.running_bytes, sum(moves.link.queue_time[Priority.SAVE].counts)) == (0, 40)

    play(scene)


def test_a_turn_of_the_loop_begins_a_few_moves_only() -> None:
    """Who pings waits for whole turns: thirty moves that may all begin do so over several turns."""

    async def scene(loop: VirtualLoop) -> None:
        moves, begun = Moves(loop, 100), []
        for number in range(30):
            moves.submit(number, Priority.SAVE)
        while len(moves.begun) < 30:
            before = len(moves.begun)
            await asyncio.sleep(0)
            begun.append(len(moves.begun) - before)
        assert max(begun) <= STARTS_PER_TURN_MAX
        await moves.settle()

    play(scene)


def test_a_move_that_takes_too_long_is_stopped_once_and_soon() -> None:
    """Of many moves only those over the limit are stopped, and then at once."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 100, s_max=10.0)
        moves.take_s = {7: 3600.0, 11: 9.9}
        for number in range(20):
            moves.submit(number, Priority.SAVE)
        await moves.settle()
        assert moves.ended == {number: (True, number == 7) for number in range(20)}
        assert 10.0 <= loop.now_s < 10.2
        took = moves.link.move_time[Priority.SAVE]
        assert took.cumulative()[-3:] == [("5", 18), ("10", 20), ("+Inf", 20)], "eighteen take 1 s"

    play(scene)


def test_a_promotion_that_has_begun_runs_beyond_its_deadline() -> None:
    """Other loads may have joined it: only the link's own limit stops it."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 100, s_max=10.0)
        moves.take_s = {1: 5.0}
        moves.submit(1, Priority.LOAD, deadline_ns=loop.now_ns() + SECOND_NS)
        await moves.settle()
        assert moves.ended == {1: (True, False)}
        assert moves.link.dropped == 0

    play(scene)


def test_a_promotion_whose_deadline_passed_in_the_queue_is_not_begun() -> None:
    """It is told as late and counted as dropped; what stands behind it goes on."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 1)
        moves.take_s = {1: 5.0}
        moves.submit(1, Priority.LOAD)
        await asyncio.sleep(0.1)
        moves.submit(2, Priority.LOAD, deadline_ns=loop.now_ns() + SECOND_NS)
        moves.submit(3, Priority.LOAD)
        await moves.settle()
        assert moves.begun == [1, 3]
        assert moves.ended[2] == (False, True)
        assert moves.link.dropped == 1

    play(scene)


def test_a_closed_link_forgets_what_waits() -> None:
    """It says how many that were, and what runs ends as ever."""

    async def scene(loop: VirtualLoop) -> None:
        moves = Moves(loop, 1)
        for number in range(5):
            moves.submit(number, Priority.SAVE)
        await asyncio.sleep(0.5)
        assert moves.link.close() == 4
        await moves.settle()
        assert moves.ended == {0: (True, False)}

    play(scene)
