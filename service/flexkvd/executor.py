"""Carries out the planner's moves; each ends as exactly one TransferResult. Copies go to `copies`.

Owns what a move does and what its end means; decides nothing and retries nothing. Whatever is raised
becomes a fault: what a tier expects as itself, anything else as INTERNAL with its traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from flexkv_py.core.messages import (
    ChunkLanded,
    Fault,
    MoveKind,
    StartCopies,
    StartMove,
    Tier,
    TransferResult,
)
from flexkv_tiers.base import FrameSpan, TierFault, TierStore
from flexkv_tiers.lanes import Lanes
from flexkvd.copies import Copies
from flexkvd.engine import Engine
from flexkvd.faults import FaultLog
from flexkvd.links import Link, LinkLimits
from flexkvd.sessions import Sessions

log = logging.getLogger(__name__)

DROPS_IN_FLIGHT_MAX = 8


@dataclass(frozen=True)
class TierLimits:
    """How much goes on at a time between DRAM and one tier, and how long one transfer may take.

    A transfer begins while fewer blocks than its maximum are in flight, or less than `bytes_in_flight_max`.
    """

    reads_in_flight_max: int
    writes_in_flight_max: int
    bytes_in_flight_max: int
    transfer_s_max: float


@dataclass(slots=True)
class Traffic:
    """What went over the links since the start, by link; and failed transfers by link and fault."""

    bytes: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)


class Executor:
    """Takes StartMove and StartCopies from the engine and gives results back to it.

    A store whose coroutine is cancelled by a deadline must end only when it touches the frames no
    more: the planner reuses them as soon as it hears of the end.
    """

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        lanes: Lanes,
        stores: Mapping[Tier, tuple[TierStore, TierLimits]],
        loop: asyncio.AbstractEventLoop,
        check: Callable[[StartMove], None] | None = None,
        faults: FaultLog | None = None,
    ) -> None:
        """`check` looks at a block's frames before they are written down, and raises TierFault; on a thread."""
        self.traffic = Traffic()
        self.links: dict[tuple[Tier, MoveKind], Link] = {}
        self._engine = engine
        self._lanes = lanes
        self._loop = loop
        self._check = check
        self._faults = faults or FaultLog(loop.time)
        self._running = 0  # moves and copies that run or wait for their turn
        self._settled: asyncio.Future[None] | None = None  # ends when there are none; somebody waits for it
        self.copies = Copies(engine, sessions, lanes, loop, self._copied)
        for tier, (store, limits) in stores.items():
            self._add_links(tier, store, limits)
        engine.handlers |= {StartMove: self._start_move, StartCopies: self._start_copies}

    def _add_links(self, tier: Tier, store: TierStore, limits: TierLimits) -> None:
        word = tier.name.lower()
        for kind, name, count_max, carry in (
            (MoveKind.PROMOTE, f"{word}_dram", limits.reads_in_flight_max, self._promote),
            (MoveKind.DEMOTE, f"dram_{word}", limits.writes_in_flight_max, self._demote),
            (MoveKind.DROP, f"{word}_drop", DROPS_IN_FLIGHT_MAX, self._drop),
        ):
            of_link = LinkLimits(count_max, limits.bytes_in_flight_max, limits.transfer_s_max)
            ended = partial(self._move_ended, name, limits.transfer_s_max)
            self.links[tier, kind] = Link(
                name, of_link, partial(carry, store, name), ended, self._loop, self._engine.now_ns
            )

    def close_lanes(self) -> None:
        """Copy no more into or out of a worker; returns when no copy runs, which takes a chunk's time."""
        self._lanes.close()

    def close(self) -> None:
        """Start no move that still waits; called when nobody hears of its end any more."""
        for link in self.links.values():
            self._ended(link.close())

    async def settle(self) -> None:
        """Return when no move and no copy runs or waits for its turn."""
        if self._running:
            self._settled = self._settled or self._loop.create_future()
            await asyncio.shield(self._settled)

    # ------------------------------------------------------------------ moves

    def _start_move(self, move: StartMove) -> None:
        self._running += 1
        self.links[move.tier, move.kind].submit(move)

    async def _promote(self, store: TierStore, link: str, move: StartMove) -> int:
        engine, landed_bytes = self._engine, 0
        try:
            async with aclosing(store.read(move.block, move.location, _spans(move))) as landing:  # type: ignore[type-var]
                async for chunk in landing:
                    landed_bytes += move.chunk_bytes[chunk]
                    engine.post(ChunkLanded(move.transfer, chunk, engine.now_ns()))
        finally:
            self.traffic.bytes[link] += landed_bytes
        return move.location

    async def _demote(self, store: TierStore, link: str, move: StartMove) -> int:
        if self._check is not None:
            await asyncio.to_thread(self._check, move)
        location = await store.write(move.block, _spans(move))
        self.traffic.bytes[link] += sum(move.chunk_bytes)
        return location

    async def _drop(self, store: TierStore, _link: str, move: StartMove) -> int:
        await store.drop(move.block, move.location)
        return 0

    def _move_ended(self, link: str, s_max: float, move: StartMove, task: asyncio.Task[int] | None, late: bool) -> None:
        self._end(_result(link, s_max, move, task, late), link)
        self._ended(1)

    # ----------------------------------------------------------------- copies

    def _start_copies(self, copies: StartCopies) -> None:
        if self.copies.start(copies):
            self._running += len(copies.blocks)
            return
        for block in copies.blocks:  # the worker died before its copies began
            self._engine.finish(TransferResult(block.transfer, Fault.MEMORY, detail="the session ended"))

    def _copied(self, link: str, results: list[TransferResult], copied_bytes: int) -> None:
        """Copies between a worker and frames have ended (see `copies.Copied`)."""
        self.traffic.bytes[link] += copied_bytes
        for result in results:
            self._end(result, link)
        self._ended(len(results))

    # ------------------------------------------------------------------- ends

    def _end(self, result: TransferResult, link: str) -> None:
        if result.fault is not None:
            self.traffic.faults[link, result.fault.value] += 1
            self._faults.failed(link, result.fault, result.detail)
        self._engine.finish(result)

    def _ended(self, count: int) -> None:
        self._running -= count
        assert self._running >= 0
        if not self._running and self._settled is not None:
            self._settled.set_result(None)
            self._settled = None


def _spans(move: StartMove) -> list[FrameSpan]:
    """The chunks of a move; of a promotion only those in its mask are wanted (see `StartMove`)."""
    wanted = move.chunks if move.kind is MoveKind.PROMOTE else -1
    frames = enumerate(zip(move.frames, move.chunk_bytes, strict=False))
    return [FrameSpan(frame, length, bool(wanted >> chunk & 1)) for chunk, (frame, length) in frames]


def _result(link: str, s_max: float, move: StartMove, task: asyncio.Task[int] | None, late: bool) -> TransferResult:
    """What the end of a move means; the one place where what was raised becomes a fault."""
    if task is None:
        return TransferResult(move.transfer, Fault.LATE, detail=f"its deadline passed while it waited on {link}")
    try:
        return TransferResult(move.transfer, location=task.result())
    except TierFault as fault:
        return TransferResult(move.transfer, fault.fault, detail=fault.detail)
    except asyncio.CancelledError:
        if not late:
            return TransferResult(move.transfer, Fault.DOWN, detail="the daemon is stopping")
        detail = f"{move.kind.value} did not end within {s_max:g} s"
        return TransferResult(move.transfer, Fault.LATE, detail=detail)
    except Exception as error:
        log.exception("a bug while a transfer ran on %s", link, exc_info=error)
        return TransferResult(move.transfer, Fault.INTERNAL, detail="a bug; see the daemon's log")
