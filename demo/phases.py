"""The phases of a run: which calls each serves, and what happens to the daemon meanwhile.

Owns their order and the histories of the sessions. The processes are `fleet`'s, the figures `report`'s.
Called by `run`.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from demo.fleet import Daemon, Worker
from demo.messages import WorkRequest, WorkResult
from demo.meter import LinkMeter
from demo.report import Phase, Served
from demo.show import Show
from demo.workload import Turn

TURNS_MIN = 6
_CALLS_WHILE_DOWN = 4
"""So many calls are answered between the daemon's death and its restart."""

Sessions = Sequence[Sequence[Turn]]
Listener = Callable[[Turn, WorkResult], None]


@dataclass
class Step:
    """One phase and the turns of every session that it serves."""

    phase: Phase
    turns: range


def plan(turns: int) -> list[Step]:
    """First turns are cold; the others are shared out over the phases that follow.

    While the daemon is dead every session has a second turn to play, so the killed phase has at least two.
    """
    assert turns >= TURNS_MIN
    warm, killed, restarted, s3_alone = ((turns - 1 + extra) // 4 for extra in (2, 3, 1, 0))
    counts = (
        (Phase("cold"), 1),
        (Phase("warm", ("dram", "ssd"), is_warm=True), warm),
        (Phase("killed mid-run", must_meet_errors=True), killed),
        (Phase("restarted", ("ssd",), is_warm=True), restarted),
        (Phase("S3 alone", ("s3",), is_warm=True), s3_alone),
    )
    steps, first = [], 0
    for phase, count in counts:
        steps.append(Step(phase, range(first, first + count)))
        first += count
    return steps


class Demo:
    """One run over running workers and a daemon that is not started yet."""

    def __init__(self, sessions: Sessions, workers: Sequence[Worker], daemon: Daemon, show: Show) -> None:
        self._sessions, self._workers, self._daemon, self._show = sessions, workers, daemon, show
        self._reference: dict[tuple[int, int], WorkResult] = {}
        self._histories: list[list[int]] = []
        self._progress = asyncio.Event()  # set after every call that was served

    async def run(self) -> list[Phase]:
        """Play everything without the daemon, then phase by phase with it."""
        steps = plan(len(self._sessions[0]))
        cold, warm, killed, restarted, s3_alone = steps
        await self._baseline(steps)
        self._histories = [[] for _ in self._sessions]
        await self._daemon.begin()
        self._show.say("daemon started, nothing cached")
        await self._measure(cold)
        await self._measure(warm)
        await self._measure(killed, self._kill_and_restart)
        await self._measure(restarted)
        await self._lose_ssd()
        await self._measure(s3_alone)
        return [step.phase for step in steps]

    async def _baseline(self, steps: Sequence[Step]) -> None:
        """The reference: the same calls, phase by phase at the same concurrency, with no daemon anywhere."""
        self._histories = [[] for _ in self._sessions]

        def keep(turn: Turn, result: WorkResult) -> None:
            self._reference[turn.session, turn.number] = result

        for step in steps:
            what = f"without daemon: {step.phase.name}"
            step.phase.reference_wall_s = await self._play(step, what, keep, cached=False)

    async def _measure(
        self, step: Step, disturb: Callable[[Step, LinkMeter], Coroutine[None, None, None]] | None = None
    ) -> None:
        """The phase's calls with the daemon; `disturb` runs beside them."""
        phase, meter = step.phase, LinkMeter(self._daemon)
        await meter.open_life(fresh=False)

        def keep(turn: Turn, result: WorkResult) -> None:
            phase.served.append(Served(turn.session, turn.number, result, self._reference[turn.session, turn.number]))
            self._progress.set()

        disturbances = [disturb(step, meter)] if disturb is not None else []
        phase.wall_s, *_ = await _together(
            [self._play(step, f"with daemon: {phase.name}", keep, cached=True), *disturbances]
        )
        await meter.close_life()
        phase.link_bytes = dict(meter.bytes)

    async def _play(self, step: Step, what: str, keep: Listener, *, cached: bool) -> float:
        """Every session's turns, each on another worker than the one before. Wall seconds.

        Agents call in bursts: a session plays its turns of the step one after another, and as many
        sessions are in a burst as there are workers.
        """
        bursts = asyncio.Semaphore(len(self._workers))

        async def play(session: Sequence[Turn], history: list[int], advance: Callable[[], None]) -> None:
            async with bursts:
                for number in step.turns:
                    turn = session[number]
                    prompt = turn.prompt(history)
                    worker = self._workers[turn.worker(len(self._workers))]
                    request = WorkRequest(prompt, turn.new_tokens, turn.seed, cached)
                    result = await worker.ask(request, WorkResult)
                    history[:] = [*prompt, *result.tokens]
                    keep(turn, result)
                    advance()

        started = time.perf_counter()
        with self._show.step(what, len(self._sessions) * len(step.turns)) as advance:
            pairs = zip(self._sessions, self._histories, strict=True)
            await _together([play(session, history, advance) for session, history in pairs])
        return time.perf_counter() - started

    async def _kill_and_restart(self, step: Step, meter: LinkMeter) -> None:
        """SIGKILL in mid-run, the workers go on alone, and some calls later the daemon starts again beside them."""
        phase, calls = step.phase, len(self._sessions) * len(step.turns)
        await self._until_served(phase, len(self._sessions) // 2)
        await meter.close_life()
        await self._daemon.kill()
        killed_at = len(phase.served)
        self._show.say("daemon killed with SIGKILL; the workers go on")
        await self._until_served(phase, min(killed_at + _CALLS_WHILE_DOWN, calls))
        await self._daemon.begin()
        await meter.open_life(fresh=True)
        self._show.say(
            f"daemon restarted from SSD and S3; {len(phase.served) - killed_at} calls were answered meanwhile"
        )

    async def _until_served(self, phase: Phase, count: int) -> None:
        while len(phase.served) < count:
            self._progress.clear()
            await self._progress.wait()

    async def _lose_ssd(self) -> None:
        """Everything down to S3, the daemon stopped, its SSD directory deleted, and a start from S3 alone."""
        await self._daemon.flush()
        await self._daemon.stop()
        shutil.rmtree(self._daemon.ssd_directory)
        await self._daemon.begin()
        self._show.say("flushed to S3, daemon stopped, SSD directory deleted, daemon started")


async def _together(work: Sequence[Coroutine[None, None, Any]]) -> list[Any]:
    """Run all; when one fails, end the others and raise its failure, not a group of one."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
