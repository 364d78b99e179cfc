"""The bucket as the store asks it: byte workers, deadlines, retries, the breaker and its probes, batched deletes.

Owns no bytes and knows nothing of blocks: it only decides which byte worker to ask, how often, and what
a failure means for the next request. Called by the store and its listing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

import msgspec

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.background import Background
from flexkv_tiers.base import StoreListener, TierFault
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.deletes import DeleteBatches
from flexkv_tiers.s3.faults import HOPELESS, UNHEARD, cure_of, explained, start_error, tier_fault
from flexkv_tiers.s3.health import Health, Silence
from flexkv_tiers.s3.messages import Check, Delete, Failed, Get, GetIndex, Reply, Request, Stored, Trouble

_LET_GO_S = 2.0
"""What a byte worker gets beyond boto3's own timeouts to let go of a stopped call's frames."""

_CHILD_START_S = 5.0
"""What a byte worker may take to start: the first check waits for it, and for boto3 to be imported."""

_URGENT = Get | GetIndex | Check
"""Somebody waits for these: everything else together leaves them a connection."""

_LOOK_S_MIN = 0.1
"""Between looks at a silence that is odd while nothing can be done about it."""

_CONNECTING = {"up": False, "down_because": "connecting: the server has not answered yet"}

PAUSE_S = 2.0
"""Between tries at what must not be given up while the bucket fails it."""

_COUNTED = (
    "retries",
    "paced",
    "uploads_present",
    "uploads_swept",
    "delete_requests",
    *(f"failed_{trouble.value}" for trouble in Trouble),
)


class Bucket:
    """One bucket and how it has been answering.

    `start` raises when the bucket cannot be used, but leaves one that comes back by itself.
    """

    def __init__(
        self, config: S3Config, arena: Arena, listener: StoreListener | None, segment_fds: Sequence[int]
    ) -> None:
        """`segment_fds`: what the byte workers map, the arena first."""
        self.counts = Counter(dict.fromkeys(_COUNTED, 0))
        self._config = config
        self._check_s = config.connect_timeout_s + config.read_timeout_s + _CHILD_START_S
        self._listener = listener
        self._health = Health(config.retry_count_max)
        self._workers = [
            ByteWorker(
                "flexkv_tiers.s3.objects",
                msgspec.msgpack.encode(config),
                segment_fds=segment_fds,
                segment_bytes=arena.segment_bytes,
                threads=config.threads,
                let_go_s=config.connect_timeout_s + config.read_timeout_s + _LET_GO_S,
            )
            for _ in range(config.processes)
        ]
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._encoder = msgspec.msgpack.Encoder()
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._prober: asyncio.Task[None] | None = None  # runs while the breaker is open
        self._background = Background("the S3 tier")
        self._silence = Silence(config.silence_s, config.read_timeout_s)
        self._watch: asyncio.TimerHandle | None = None  # until the silence is odd; set while anything is asked
        self._doubting: asyncio.Task[None] | None = None  # the silence was odd: asks whether the server is there
        self._came_back = asyncio.Event()  # set while the breaker is closed
        self._came_back.set()
        self._closing = asyncio.Event()
        self._connecting = True  # until the first answer, or its want, says whether the bucket serves
        self._deletes = DeleteBatches(self._delete)

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()
        # Awake first: from then on a silence is the server's, not that of a child which is still starting.
        failure = await self._check(self._check_s, asks=False) or await self._check(self._check_s)
        self._connecting = False
        if failure is None:
            return
        if self._health.up:
            self._health.breaker.open(explained(failure), self._now_s())
            self._go_down()
        elif failure.trouble in UNHEARD:  # cut off because the silence was noticed: that is why
            raise FlexKVError(
                ErrorCode.S3_UNREACHABLE, f"{self._config.place} cannot be used: {self._health.down_because}"
            )
        raise start_error(failure, self._config.place)

    async def close(self) -> None:
        """End whatever waits for the bucket: it fails with DOWN, in this life and later."""
        self._closing.set()
        self._came_back.set()  # a listing that waits out an outage ends too
        if self._watch is not None:
            self._watch.cancel()
        asking = [task for task in (self._prober, self._doubting) if task is not None]
        for task in asking:
            task.cancel()
        for worker in self._workers:
            await worker.close()
        if asking:
            await asyncio.wait(asking)
        await self._deletes.settled()

    def status(self) -> dict[str, object]:
        return {
            **self._health.status(),
            **(_CONNECTING if self._connecting else {}),
            "processes": [worker.pid for worker in self._workers if worker.pid is not None],  # that live now
            "process_deaths": sum(worker.deaths for worker in self._workers),
            "moves_running": sum(worker.running for worker in self._workers),
            **self.counts,
        }

    # ------------------------------------------------------------- requests

    async def delete(self, name: str) -> None:
        """Delete an object, together with what others want deleted. Raises TierFault."""
        await self._deletes.delete(name)

    async def delete_again(self, name: str) -> None:
        """Delete an object, however often the bucket refuses. Raises TierFault when the store was closed."""
        while True:
            await self._came_back.wait()
            try:
                return await self.delete(name)
            except TierFault:
                if self.closed:
                    raise
                await self._pause(PAUSE_S)

    async def ask_again(self, request: Request) -> Reply | None:
        """One operation, whenever the bucket is ready for it: outages are waited out.

        Raises TierFault when the answer is about the object itself, or the store was closed.
        """
        while True:
            await self._came_back.wait()
            try:
                return await self.ask(lambda: request)
            except TierFault as fault:
                if self.closed or fault.fault in (Fault.MISSING, Fault.CORRUPT):
                    raise
                await self._pause(PAUSE_S)

    async def ask(self, request: Callable[[], Request]) -> Reply | None:
        """One operation that has at most one reply."""
        last: Reply | None = None
        async with aclosing(self.replies(request)) as replies:
            async for reply in replies:
                assert last is None
                last = reply
        return last

    async def replies(self, request: Callable[[], Request]) -> AsyncGenerator[Reply, None]:
        """The good replies of one operation, over as many attempts as deadline, budget and breaker allow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.operation_timeout_s
        retries = 0
        while True:
            if self.closed:
                raise self._closed()
            if not self._health.up:
                raise self._down()
            failure: Failed | None = None
            asked = request()
            await self._pace(deadline, urgent=isinstance(asked, Get))
            async with aclosing(self._attempt(asked, deadline - loop.time())) as replies:
                async for reply in replies:
                    if isinstance(reply, Failed):
                        failure = reply
                        continue
                    self.counts["uploads_present"] += isinstance(reply, Stored) and reply.present
                    yield reply
            if failure is None:
                self._health.succeeded(self._now_s())
                return
            self._note(failure)
            if failure.trouble is Trouble.STOPPED and not self._health.up:  # cut off because the bucket is down
                raise self._down()
            delay = self._health.retry_delay_s(failure.trouble, retries, deadline - loop.time(), self._chance.random())
            if delay is None:
                raise tier_fault(failure)
            retries += 1
            self.counts["retries"] += 1
            await self._pause(delay)

    async def _pace(self, deadline: float, *, urgent: bool) -> None:
        """Wait as long as the server's limits ask for. Raises TierFault."""
        now_s = self._now_s()
        delay = self._health.throttle.delay_s(now_s, deadline - now_s, urgent=urgent)
        if delay is None:
            raise TierFault(Fault.LATE, f"{self._config.place} takes fewer requests than there are, by its 503 answers")
        if delay:
            self.counts["paced"] += 1
            await self._pause(delay)

    async def _pause(self, delay_s: float) -> None:
        """Sleep, but not beyond the end of the store. Raises TierFault then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
            raise self._closed()

    def _down(self) -> TierFault:
        return TierFault(Fault.DOWN, f"{self._config.place} is down since: {self._health.down_because}")

    def _closed(self) -> TierFault:
        return TierFault(Fault.DOWN, f"the store of {self._config.place} is closed")

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    async def _attempt(self, request: Request, timeout_s: float, *, spare: bool = False) -> AsyncGenerator[Reply, None]:
        """One attempt in the least busy byte worker; the last reply may be `Failed`."""
        worker, silence = self._least_busy(), self._silence
        raw_request, patient = self._encoder.encode(request), not isinstance(request, _URGENT)
        starting = not worker.awake
        silence.begin(self._now_s())
        if self._watch is None and self._doubting is None:
            self._watch_silence()
        try:
            async with aclosing(worker.call(raw_request, timeout_s=timeout_s, patient=patient, spare=spare)) as replies:
                async for raw in replies:
                    reply = self._decoder.decode(raw)
                    if isinstance(reply, Failed) and reply.trouble in UNHEARD:
                        yield reply
                        return
                    silence.hear(self._now_s(), late=starting)
                    yield reply
                silence.hear(self._now_s(), late=starting)  # the answer to some requests is that they ended well
        finally:
            silence.end()

    def _least_busy(self) -> ByteWorker:
        return min(self._workers, key=lambda each: each.running)

    def _note(self, failure: Failed) -> None:
        self.counts[f"failed_{failure.trouble.value}"] += 1
        self._health.failed(failure.trouble, explained(failure), self._now_s())
        if not self._health.up:
            self._go_down()

    # -------------------------------------------------------------- silence

    def _watch_silence(self) -> None:
        """Look again when the silence would be odd; whoever is answered meanwhile need not touch the timer."""
        odd_at_s = self._silence.odd_at_s
        self._watch = None
        if odd_at_s is None or self.closed:
            return
        if self._now_s() >= odd_at_s and self._health.up and self._least_busy().awake:
            self._doubting = self._background.spawn(self._ask_whether_it_is_there())
            return
        at_s = max(odd_at_s, self._now_s() + _LOOK_S_MIN)
        self._watch = asyncio.get_running_loop().call_at(at_s, self._watch_silence)

    async def _ask_whether_it_is_there(self) -> None:
        """Ask something small beside all that waits. Without an answer to anything the bucket is down for all of it."""
        since_s, limit_s = self._silence.since_s, self._silence.limit_s
        failure = await self._check(limit_s, spare=True)
        unheard = failure is not None and failure.trouble in UNHEARD
        if unheard and self._silence.since_s == since_s and self._health.up:
            said = f"the server said nothing for {self._now_s() - since_s:.1f} s, neither to what it was asked nor to "
            self._note(Failed(Trouble.SILENT, said + "the question whether it is there"))
            for worker in self._workers:
                worker.stop_all()
        self._doubting = None
        self._watch_silence()

    # --------------------------------------------------------- breaker open

    def _go_down(self) -> None:
        if self._prober is not None or self.closed:
            return
        self._came_back.clear()
        self._prober = self._background.spawn(self._probe())
        if self._listener is not None:
            self._listener.changed(False, self._health.down_because)

    async def _probe(self) -> None:
        """Ask for the bucket at growing intervals until it answers; another refusal than before is told as it comes."""
        breaker, told, failed_count = self._health.breaker, self._health.down_because, 0
        while breaker.probe_at_s is not None:
            await asyncio.sleep(max(0.0, breaker.probe_at_s - self._now_s()))
            breaker.begin_probe(max(breaker.probe_at_s, self._now_s()))  # a timer may be early by its resolution
            failure = await self._check(self._check_s)
            breaker.end_probe(explained(failure) if failure else "", self._now_s())
            if failure is not None:
                failed_count += 1
                if failure.trouble in HOPELESS and cure_of(failure.trouble) not in told and self._listener is not None:
                    told = self._health.down_because
                    self._listener.changed(False, f"{told} (after {failed_count} failed probes)")
        self._prober = None
        self._came_back.set()
        if self._listener is not None:
            self._listener.changed(True, f"the bucket answers again, after {failed_count} failed probes")

    async def _check(self, timeout_s: float, *, asks: bool = True, spare: bool = False) -> Failed | None:
        """Whether the bucket can be used right now, asked once."""
        failure: Failed | None = None
        try:
            async with aclosing(self._attempt(Check(asks), timeout_s, spare=spare)) as replies:
                async for reply in replies:
                    assert isinstance(reply, Failed)
                    failure = reply
        except TierFault as fault:
            return Failed(Trouble.CUT, fault.detail)  # not the bucket's fault: the byte worker's
        return failure

    async def _delete(self, names: list[str]) -> None:
        self.counts["delete_requests"] += 1
        request = Delete(names)
        await self.ask(lambda: request)
