"""Workers of the row path: they attach requests, run steps over granted frames, and acknowledge late, twice or never.

A step reads the frames its table named when it began, at moments spread over its duration; each must hold that block's
bytes. Pages of frames that a worker was granted are watched until it has applied their revocation, or its process is
gone: the planner must not call them free before.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexkv_py.core.messages import (
    AbsentEntry,
    AttachAnswered,
    ChangePages,
    HeatEntry,
    HeatReported,
    LoseSession,
    PagesAcknowledged,
    RefuseReplay,
    ReplayOutcome,
    RequestAttached,
    RequestDetached,
    WorkerGone,
)
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey
from tests.sim.clients import Client
from tests.sim.faults import MICROSECOND, MILLISECOND, SECOND
from tests.sim.names import frame_pages
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

WORKERS_MAX = 4
REQUESTS_PER_WORKER_MAX = 3
SPOTS_PER_STEP_MAX = 8
REPLAY_SLACK_NS = 1 * SECOND
"""Messages of the simulator are on their way for less than that."""
Spot = tuple[int, int]


@dataclass(eq=False)
class Decoding:
    """One request as one worker has it. `table` is what its next step sees, `sent` what the daemon has told."""

    worker: Worker
    number: int
    chain: tuple[BlockKey, ...]
    since: int
    attached: int = 0
    version: int = 0
    told: int = 0
    answered: bool = False
    hangs: bool = False  # it does nothing more, and owes an acknowledgement
    owes: bool = False  # some version revoked something, and the last acknowledgement never went out
    table: dict[Spot, int] = field(default_factory=dict)
    sent: dict[Spot, int] = field(default_factory=dict)
    inbox: deque[ChangePages] = field(default_factory=deque)
    arrived: int = 0  # versions up to this have, whether they are applied or not
    stepping: bool = False
    missed: list[Spot] = field(default_factory=list)  # all that a failed step reads, until it has succeeded
    waits: list[Spot] = field(default_factory=list)  # what of it was absent
    replays: int = 0
    leaving: bool = False  # it is to be detached after the step


@dataclass(eq=False)
class Worker:
    """One process: its session, what it decodes, and when its messages arrive (in order)."""

    client: Client
    instance: str
    decoding: dict[int, Decoding] = field(default_factory=dict)
    gone: bool = False
    arrives_ns: int = 0


class RowTraffic:
    """All row-path workers of one life of the daemon."""

    def __init__(
        self, world: World, chance: random.Random, gap_ns: int, save: Callable[[Client, list[BlockKey]], None]
    ) -> None:
        self._world = world
        self._chance = chance
        self._gap_ns = gap_ns
        self._workers: dict[int, Worker] = {}  # by session, until its process is gone
        self._requests = 0
        self.save = save
        self.stopped = False
        self.counts: dict[str, int] = {}
        if gap_ns:
            world.after(gap_ns, self._next)

    def stop(self) -> None:
        """Every request ends after its next step."""
        self.stopped = True
        for decoding in self._all():
            decoding.leaving = True
            self._go_on(decoding)

    def _all(self) -> list[Decoding]:
        return [decoding for worker in self._workers.values() for decoding in worker.decoding.values()]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --------------------------------------------------------------- what comes

    def _next(self) -> None:
        if self.stopped:
            return
        world, chance = self._world, self._chance
        world.after(int(chance.expovariate(1 / self._gap_ns)), self._next)
        workers = [worker for worker in self._workers.values() if worker.client.alive]
        if not workers or (len(workers) < WORKERS_MAX and chance.random() < 0.1):
            self._open()
            return
        worker = chance.choice(workers)
        drawn = chance.random()
        if drawn < 0.04:
            self._kill(worker)
        elif drawn < 0.5 and len(worker.decoding) < REQUESTS_PER_WORKER_MAX:
            self._attach(worker)
        elif worker.decoding:
            self._go_further(chance.choice(list(worker.decoding.values())))

    def _open(self) -> None:
        """A worker: alone, or one more rank of an instance that has one."""
        world, chance = self._world, self._chance
        space, shard = chance.choice(world.namespaces), chance.choice((0, 0, 1))
        instance = chance.choice(("", "left", "right"))
        client = world.open_session(space, shard, instance)
        if client.alive:
            self._workers[client.number] = Worker(client, instance)

    def _kill(self, worker: Worker) -> None:
        """SIGKILL, acknowledgements outstanding or not; the workload's own closing of sessions does the same."""
        self._count("killed")
        self._world.close_session(worker.client)

    def closed(self, client: Client) -> None:
        """The socket is gone; the process a little later."""
        worker = self._workers.get(client.number)
        if worker is not None:
            self._world.after(self._chance.choice((0, 1, 300)) * MILLISECOND, self._gone, worker)

    def _gone(self, worker: Worker) -> None:
        """Until its last moment it could read whatever it was granted."""
        for decoding in worker.decoding.values():
            for spot, frame in decoding.table.items():
                self._read(decoding, spot, frame)
            self._forget(decoding)
        worker.gone = True
        del self._workers[worker.client.number]
        self._world.post(WorkerGone(worker.client.number, self._world.now_ns))

    # ---------------------------------------------------------- attach and detach

    def _attach(self, worker: Worker) -> None:
        """A new request; or the one another rank of the instance decodes already."""
        chance, since = self._chance, self._world.oracle.now()
        space, shard = worker.client.namespace, worker.client.shard
        others = [
            decoding
            for decoding in self._all()
            if decoding.worker.instance == worker.instance != ""
            and (decoding.worker.client.namespace, decoding.worker.client.shard) == (space, shard)
            and decoding.number not in worker.decoding
        ]
        if others and chance.random() < 0.7:
            other = chance.choice(others)
            decoding = Decoding(worker, other.number, other.chain, since)
        else:
            self._requests += 1
            decoding = Decoding(worker, self._requests, chance.choice(space.chains), since)
        count = self._matched(worker, decoding.chain)
        if count:
            worker.decoding[decoding.number] = decoding
            self._ask(decoding, count)

    def _matched(self, worker: Worker, chain: tuple[BlockKey, ...]) -> int:
        """Mostly what a match would answer: an engine computes the rest before it decodes. Now and then more."""
        world, chance = self._world, self._chance
        names = [world.name(worker.client, key) for key in chain]
        ready = next((at for at, name in enumerate(names) if not world.is_ready(name)), len(chain))
        return chance.randint(1, len(chain)) if chance.random() < 0.1 else ready

    def _go_further(self, decoding: Decoding) -> None:
        if decoding.answered and decoding.attached < len(decoding.chain) and self._chance.random() < 0.5:
            self._ask(decoding, max(decoding.attached, self._matched(decoding.worker, decoding.chain)))
        elif self._chance.random() < 0.3:
            if self._chance.random() < 0.5:  # cancelled, though it waits for a replay
                decoding.missed = []
            decoding.leaving = True
            self._go_on(decoding)

    def _ask(self, decoding: Decoding, count: int) -> None:
        world, client = self._world, decoding.worker.client
        first = self._chance.randint(0, decoding.attached)
        asked = world.next_number()
        world.requests[asked] = (client, lambda: None)
        before = decoding.attached
        world.refused[asked] = lambda code: self._refused(decoding, before, code)
        keys = list(decoding.chain[first:count])
        decoding.attached = max(decoding.attached, count)
        world.post(RequestAttached(client.number, asked, decoding.number, first, keys, world.now_ns))

    def _refused(self, decoding: Decoding, attached: int, code: ErrorCode) -> None:
        """A limit, or a reset meanwhile: what is attached goes on a step, then it ends."""
        fair = code in (ErrorCode.LIMIT_EXCEEDED, ErrorCode.DRAINING)
        if not fair and not (code is ErrorCode.BAD_ARGUMENT and self._was_reset(decoding)):
            raise Violation(f"request {decoding.number} may not be attached: {code}")
        decoding.attached = attached
        if not decoding.attached:
            del decoding.worker.decoding[decoding.number]
        decoding.leaving = True

    def _was_reset(self, decoding: Decoding) -> bool:
        return self._world.oracle.was_reset(decoding.worker.client.namespace.digest, decoding.since)

    def answered(self, answer: AttachAnswered) -> None:
        del self._world.requests[answer.asked]
        del self._world.refused[answer.asked]
        decoding = self._workers[answer.session].decoding[answer.request]
        if not decoding.answered:
            decoding.told = decoding.version = answer.version
            decoding.answered = True
            self._world.after(self._delay(), self._step, decoding)
        self._count("attached")

    def _detach(self, decoding: Decoding) -> None:
        """No step is in flight; once the daemon has heard of it nothing is read any more."""
        world, client = self._world, decoding.worker.client
        del decoding.worker.decoding[decoding.number]
        self._forget(decoding)
        asked = world.next_number()
        world.requests[asked] = (client, lambda: None)
        world.post(RequestDetached(client.number, asked, decoding.number, world.now_ns))

    def _forget(self, decoding: Decoding) -> None:
        """Nothing of what was granted can be read any more."""
        pages = frame_pages(decoding.worker.client.namespace.spec)
        for change in decoding.inbox:
            for page in change.granted:
                self._world.arena.unmap(page.frame, pages)
        for frame in decoding.table.values():
            self._world.arena.unmap(frame, pages)
        decoding.inbox.clear()
        decoding.table.clear()

    # ------------------------------------------------------------------- versions

    def changed(self, change: ChangePages) -> None:
        """The daemon has sent a version; it arrives after those before it."""
        world = self._world
        worker = self._workers[change.session]
        decoding = worker.decoding.get(change.request)
        if decoding is None:
            raise Violation(f"pages of request {change.request} come after its detach was answered")
        if change.version != decoding.told + 1:
            raise Violation(f"version {change.version} of request {change.request} follows {decoding.told}")
        decoding.told = change.version
        pages = frame_pages(worker.client.namespace.spec)
        for revoked in change.revoked:
            decoding.sent.pop((revoked.block, revoked.chunk), None)
        for page in change.granted:
            if page.block >= decoding.attached or (page.block, page.chunk) in decoding.sent:
                raise Violation(f"block {page.block} of request {change.request} is granted twice, or is not attached")
            decoding.sent[page.block, page.chunk] = page.frame
            world.arena.map(page.frame, pages)
        decoding.inbox.append(change)
        worker.arrives_ns = max(worker.arrives_ns, world.now_ns + self._delay())
        world.after(worker.arrives_ns - world.now_ns, self._go_on, decoding, change.version)

    def _apply(self, decoding: Decoding) -> None:
        """Between steps: the table changes, and no step can see the old one any more."""
        pages = frame_pages(decoding.worker.client.namespace.spec)
        before = decoding.version
        while decoding.inbox and decoding.inbox[0].version <= decoding.arrived:
            change = decoding.inbox.popleft()
            for revoked in change.revoked:
                frame = decoding.table.pop((revoked.block, revoked.chunk), None)
                if frame is not None:
                    self._world.arena.unmap(frame, pages)
            for page in change.granted:
                decoding.table[page.block, page.chunk] = page.frame
            decoding.owes = decoding.owes or bool(change.revoked)
            decoding.version = change.version
        if decoding.version != before:
            self._acknowledge(decoding, before)

    def _acknowledge(self, decoding: Decoding, before: int) -> None:
        """Soon, late, twice, together with one that is old by then; or never: then the process hangs."""
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.06 and decoding.owes:
            self._count("hangs")
            decoding.hangs = True
            return
        decoding.owes = False
        versions = [decoding.version]
        if drawn < 0.2:
            versions += [decoding.version, before]
        for version in versions:
            delay = self._delay() if chance.random() < 0.9 else 20 * MILLISECOND
            self._world.after(delay, self._tell_acknowledged, decoding, version)

    def _tell_acknowledged(self, decoding: Decoding, version: int) -> None:
        client = decoding.worker.client
        if client.alive and decoding.worker.decoding.get(decoding.number) is decoding:
            world, asked = self._world, 0
            if self._chance.random() < 0.5:
                asked = world.next_number()
                world.requests[asked] = (client, lambda: None)
            world.post(PagesAcknowledged(client.number, decoding.number, version, world.now_ns, asked))

    def lost(self, lose: LoseSession) -> None:
        """The daemon closes the socket of a worker that did not acknowledge in time."""
        self._count("late")
        worker = self._workers.get(lose.session)
        if worker is not None and worker.client.alive:
            self._world.after(0, self._close_lost, worker)

    def _close_lost(self, worker: Worker) -> None:
        if worker.client.alive:
            self._world.close_session(worker.client)

    # ---------------------------------------------------------------------- steps

    def _go_on(self, decoding: Decoding, arrived: int = 0) -> None:
        """Something arrived, or the request is to end: whatever can be done between steps is done."""
        worker = decoding.worker
        decoding.arrived = max(decoding.arrived, arrived)
        if worker.gone or decoding.hangs or decoding.stepping or worker.decoding.get(decoding.number) is not decoding:
            return
        self._apply(decoding)
        if not worker.client.alive or not decoding.answered:
            return
        if decoding.leaving and not decoding.missed:
            self._detach(decoding)
        elif decoding.missed and all(spot in decoding.table for spot in decoding.waits):
            self._step(decoding)

    def _step(self, decoding: Decoding) -> None:
        """One step: what it needs is there, or it fails and says what was absent."""
        world, chance, worker = self._world, self._chance, decoding.worker
        here = worker.decoding.get(decoding.number) is decoding
        if worker.gone or decoding.hangs or decoding.stepping or not here or not worker.client.alive:
            return
        chunks = len(worker.client.namespace.spec.chunk_bytes)
        wanted = list(decoding.missed) or [
            (chance.randrange(decoding.attached), chance.randrange(chunks))
            for _ in range(chance.randint(1, SPOTS_PER_STEP_MAX))
        ]
        decoding.stepping = True
        duration = chance.choice((20, 200, 1500)) * MICROSECOND
        for spot in wanted:
            if spot in decoding.table:
                world.after(chance.randint(0, duration), self._read, decoding, spot, decoding.table[spot])
        absent = [spot for spot in dict.fromkeys(wanted) if spot not in decoding.table]
        world.after(duration, self._end_step, decoding, list(dict.fromkeys(wanted)), absent)

    def _read(self, decoding: Decoding, spot: Spot, frame: int) -> None:
        """What was granted must be that block's bytes."""
        client = decoding.worker.client
        position, chunk = spot
        name = self._world.name(client, decoding.chain[position])
        if not decoding.worker.gone and self._world.arena.read(frame)[0] != self._world.right(name)[chunk]:
            raise Violation(f"chunk {chunk} of block {position} was read with wrong bytes by a step", name)

    def _end_step(self, decoding: Decoding, wanted: list[Spot], absent: list[Spot]) -> None:
        world, worker = self._world, decoding.worker
        decoding.stepping = False
        if not worker.client.alive or worker.gone:
            return
        number = decoding.number
        heat = [HeatEntry(number, position, chunk, 3) for position, chunk in wanted if not absent]
        missed = [AbsentEntry(number, position, chunk) for position, chunk in absent]
        replayed = [number] if decoding.missed and not absent else []
        self._count("failed" if absent else "replayed" if replayed else "stepped")
        if absent:
            decoding.missed, decoding.waits = wanted, absent
            decoding.replays += 1
            limit_ns = world.config.rows.replay_ns_max + REPLAY_SLACK_NS
            world.after(limit_ns, self._check_replay, decoding, decoding.replays)
        elif replayed:
            decoding.missed, decoding.replays = [], 0
        world.post(HeatReported(worker.client.number, heat, missed, replayed, [], world.now_ns))
        if not absent:
            world.after(self._delay() * 5, self._step, decoding)
        self._go_on(decoding)

    def refused(self, refusal: RefuseReplay) -> None:
        """The step will not succeed: the engine recomputes, here by saving the blocks again, or lets the request go."""
        self._count(refusal.outcome.value)
        worker = self._workers[refusal.session]
        decoding = worker.decoding[refusal.request]
        decoding.missed, decoding.replays = [], 0
        if self._chance.random() < 0.3 or self.stopped:
            decoding.leaving = True
        elif refusal.outcome is ReplayOutcome.LOST:
            keys = list(decoding.chain[: decoding.attached])
            self._world.after(self._delay(), self.save, worker.client, keys)
        self._world.after(self._delay() * 5, self._step_or_end, decoding)

    def _step_or_end(self, decoding: Decoding) -> None:
        if decoding.leaving:
            self._go_on(decoding)
        else:
            self._step(decoding)

    def _check_replay(self, decoding: Decoding, replay: int) -> None:
        """What a failed step asked for came in, or was refused."""
        worker = decoding.worker
        here = worker.client.alive and worker.decoding.get(decoding.number) is decoding
        if here and not decoding.hangs and decoding.missed and not decoding.stepping and decoding.replays == replay:
            raise Violation(f"request {decoding.number} waits for {decoding.waits}, and nobody brings or refuses it")

    def check_over(self) -> None:
        """At the end nobody is left: what hung has lost its session."""
        if left := [decoding.number for decoding in self._all()]:
            raise Violation(f"requests {left} are attached, and nothing runs any more")

    def _delay(self) -> int:
        return self._chance.choice((1, 10, 100, 1000)) * MICROSECOND

    # ---------------------------------------------------------------------- checks

    def check(self) -> None:
        """Ranks of one instance were told the same of the blocks that both have attached."""
        first: dict[tuple[str, object, int, int], Decoding] = {}
        for decoding in self._all():
            client = decoding.worker.client
            if not decoding.worker.instance or not client.alive or not decoding.answered or self._was_reset(decoding):
                continue
            name = (decoding.worker.instance, client.namespace.digest, client.shard, decoding.number)
            other = first.setdefault(name, decoding)
            both = min(decoding.attached, other.attached)
            tables = [{spot: at for spot, at in one.sent.items() if spot[0] < both} for one in (decoding, other)]
            if decoding.told != other.told or tables[0] != tables[1]:
                raise Violation(f"two ranks of request {decoding.number} were told different things")
