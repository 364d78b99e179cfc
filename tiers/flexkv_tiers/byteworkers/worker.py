"""The daemon's side of a byte worker: starts the child process, calls it, replaces it when it dies.

Owns the child's life and the promise that a call ends only when the child no longer touches the
call's frames: the child said so, or it is dead and reaped. Knows nothing of what calls do. Called by
tiers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, cast

import msgspec

from flexkv_py.core.messages import Fault
from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.framing import HEAD_BYTES, Head, Opening, Verb, pack_frame, parse_head

RESPAWN_DELAY_S_MIN = 0.1
RESPAWN_DELAY_S_MAX = 5.0
_STABLE_LIFE_S = 10.0
_CALL_NUMBER_MAX = (1 << 32) - 1


def respawn_delay_s(short_lives: int) -> float:
    """Pause before the next start after `short_lives` children in a row died young: the first has none."""
    if short_lives <= 1:
        return 0.0
    return min(RESPAWN_DELAY_S_MAX, RESPAWN_DELAY_S_MIN * 2.0 ** min(short_lives - 2, 16))


def patient_threads(threads: int) -> int:
    """How many of so many threads patient calls may have."""
    return max(1, threads - max(1, threads // 4))


class ByteWorker:
    """One child process of `module` (run with `python -m`), replaced whenever it dies.

    At most `threads` calls run at a time; others wait in the daemon, where waiting is cheap to end. Patient
    calls together leave one thread in four, or at least one if there are two, to the others.
    Beside them there is room for one `spare` call, which never waits for a thread.
    A call that has not ended `let_go_s` after its timeout costs the child its life, because nothing
    else gives its frames back.
    """

    def __init__(
        self,
        module: str,
        options: bytes,
        *,
        segment_fds: Sequence[int],
        segment_bytes: int,
        threads: int,
        let_go_s: float,
    ) -> None:
        self.deaths = 0
        self.running = 0  # calls that wait for this child or run in it
        self._module = module
        self._opening = Opening(list(segment_fds), segment_bytes, threads, options)
        self._let_go_s = let_go_s
        self._stops = 0  # how often all calls were stopped
        self._slots = asyncio.Semaphore(threads)
        self._patient_slots = asyncio.Semaphore(patient_threads(threads))
        self._child: _Child | None = None
        self._changed = asyncio.Event()  # set while there is a child, and for good once closing
        self._closing = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._background = Background(f"byte worker {module}")

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    @property
    def awake(self) -> bool:
        """Whether the child has said anything yet: one that is still starting answers nobody."""
        return self._child is not None and self._child.awake

    def stop_all(self) -> None:
        """Have all calls end early, those that run and those that wait for a thread (with DOWN)."""
        self._stops += 1
        if self._child is not None:
            self._child.stop_all()

    async def start(self) -> None:
        """Return when the first child is there. After `close`, also one that came meanwhile, there is none."""
        assert self._supervisor is None
        if not self._closing.is_set():
            first = asyncio.create_task(self._spawn())  # a start that is cancelled leaves a child, which `close` ends
            self._supervisor = self._background.spawn(self._supervise(first))
            await asyncio.shield(first)

    async def close(self) -> None:
        """Kill the child and wait until it is reaped; what ran in it fails. Idempotent."""
        self._closing.set()
        self._changed.set()
        if self._child is not None:
            self._child.kill()
        if self._supervisor is not None:
            await asyncio.wait([self._supervisor])

    async def call(
        self, request: bytes, *, timeout_s: float, patient: bool = False, spare: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Run one request and yield its replies; a `patient` one lets others have a thread before it.

        A `spare` one has a thread of its own; there may be one at a time.

        After `timeout_s` the child is told to stop, and says in its replies how far it came. Closing
        the iterator early stops the call too; both return only when its frames are free, so iterate
        within `contextlib.aclosing`. Raises TierFault: IO when the child died, LATE when no thread of
        it was free in time, DOWN after `close` and for what waited at `stop_all`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        self.running += 1
        stops = self._stops
        try:
            async with nullcontext() if spare else self._slot(deadline, patient=patient):
                if stops != self._stops:
                    raise TierFault(
                        Fault.DOWN,
                        "the tier went down while this waited for a connection: it is served again once the tier is up",
                    )
                child = await self._living_child(deadline)
                async with aclosing(self._replies(child, request, deadline)) as replies:
                    async for reply in replies:
                        yield reply
        finally:
            self.running -= 1

    async def _replies(self, child: _Child, request: bytes, deadline: float) -> AsyncGenerator[bytes, None]:
        call = child.begin(request)
        call.set_timer(deadline, self._expired, child, call)
        try:
            while await call.more():
                while call.replies:
                    yield call.replies.popleft()
            call.ended.result()  # raises why, if it failed
        finally:
            child.stop(call)
            await _outlive(call.ended)
            call.cancel_timer()

    def _expired(self, child: _Child, call: _Call) -> None:
        child.stop(call)
        call.set_timer(asyncio.get_running_loop().time() + self._let_go_s, child.kill)

    @asynccontextmanager
    async def _slot(self, deadline: float, *, patient: bool) -> AsyncIterator[None]:
        async with AsyncExitStack() as held:
            for slots in (self._patient_slots, self._slots) if patient else (self._slots,):
                await self._claim(slots, deadline)
                held.callback(slots.release)
            yield

    async def _claim(self, slots: asyncio.Semaphore, deadline: float) -> None:
        try:
            if slots.locked():
                async with asyncio.timeout_at(deadline):
                    await slots.acquire()
            else:
                await slots.acquire()  # at once
        except TimeoutError:
            busy = f"all {self._opening.threads} threads of {self._module} stayed busy within the deadline"
            raise TierFault(Fault.LATE, busy) from None

    async def _living_child(self, deadline: float) -> _Child:
        try:
            if not self._changed.is_set():
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
        except TimeoutError:
            raise TierFault(Fault.LATE, f"{self._module} died and was not up again within the deadline") from None
        if self._child is None or self._closing.is_set():
            raise TierFault(Fault.DOWN, f"{self._module} is closed")
        return self._child

    async def _supervise(self, spawning: asyncio.Task[_Child]) -> None:
        loop = asyncio.get_running_loop()
        short_lives = 0
        while True:
            born = loop.time()
            try:
                child = await spawning
                await child.gone
            except Exception as error:  # no process to be had, or one that talks nonsense
                loop.call_exception_handler({"message": f"byte worker {self._module}", "exception": error})
            if self._child is not None:
                await self._bury(self._child)
            short_lives = short_lives + 1 if loop.time() - born < _STABLE_LIFE_S else 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), respawn_delay_s(short_lives))
            if self._closing.is_set():
                return
            spawning = asyncio.create_task(self._spawn())

    async def _spawn(self) -> _Child:
        self._child = await _Child.spawn(self._module, self._opening)
        self._changed.set()
        if self._closing.is_set():
            self._child.kill()
        return self._child

    async def _bury(self, child: _Child) -> None:
        """Wait until the child is dead and reaped; only then fail what ran in it."""
        self._child = None
        if not self._closing.is_set():
            self._changed.clear()
        status = await child.reaped()
        self.deaths += 1
        child.fail_all(f"byte worker {self._module} (process {child.process.pid}) died with status {status}")


class _Call:
    """One call in flight: its replies so far, and whether its frames are free."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.replies: deque[bytes] = deque()  # bounded by the chunks of a block
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._waiting: asyncio.Future[None] | None = None  # whoever waits for the next reply or the end
        self._timer: asyncio.TimerHandle | None = None

    async def more(self) -> bool:
        """Wait for replies; False when there are none and the call has ended."""
        if not self.replies and not self.ended.done():
            self._waiting = self._loop.create_future()
            await self._waiting
        return bool(self.replies)

    def add(self, reply: bytes) -> None:
        self.replies.append(reply)
        self._wake()

    def set_timer(self, at_s: float, function: Callable[..., None], *arguments: Any) -> None:
        """One at a time."""
        self._timer = self._loop.call_at(at_s, function, *arguments)

    def cancel_timer(self) -> None:
        assert self._timer is not None
        self._timer.cancel()

    def end(self, error: Exception | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # a caller that left early never looks at it
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _Child(asyncio.Protocol):
    """One life of the child process. `gone` ends with its end of the socket, or with what was wrong with its frames."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.process = process
        self.gone: asyncio.Future[None] = loop.create_future()
        self.awake = False  # it has answered something
        self._loop = loop
        self._pidfd = os.pidfd_open(process.pid)
        self._transport: asyncio.WriteTransport
        self._received = bytearray()  # less than a frame
        self._unsent: list[bytes] = []  # frames of this turn of the loop
        self._calls: dict[int, _Call] = {}  # calls whose frames the child may still touch
        self._next = 0

    @classmethod
    async def spawn(cls, module: str, opening: Opening) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = _exec(module, theirs.fileno(), opening.segment_fds)
        loop = asyncio.get_running_loop()
        child = cls(process, loop)
        await loop.create_unix_connection(lambda: child, sock=ours)
        child._transport.write(pack_frame(Verb.OPEN, 0, msgspec.msgpack.encode(opening)))
        return child

    def begin(self, request: bytes) -> _Call:
        self._next = self._next % _CALL_NUMBER_MAX + 1
        assert self._next not in self._calls
        call = self._calls[self._next] = _Call(self._next, self._loop)
        self._send(pack_frame(Verb.CALL, call.number, request))
        return call

    def stop(self, call: _Call) -> None:
        if call.number in self._calls:
            self._send(pack_frame(Verb.STOP, call.number))

    def _send(self, frame: bytes) -> None:
        """Calls of one turn go out together: to wake the child is a good part of what a call costs the loop."""
        if not self._unsent:
            self._loop.call_soon(self._send_together)
        self._unsent.append(frame)

    def _send_together(self) -> None:
        frames, self._unsent = self._unsent, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def stop_all(self) -> None:
        for call in self._calls.values():
            self.stop(call)

    def kill(self) -> None:
        self.process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's own class, which is none of asyncio's

    def data_received(self, data: bytes) -> None:
        """Hand on all that came in one piece: a frame each, then a wake-up for each call."""
        received = self._received
        received += data
        start = 0
        try:
            while len(received) - start >= HEAD_BYTES:
                head = parse_head(received[start : start + HEAD_BYTES])
                end = start + HEAD_BYTES + head.body_bytes
                if len(received) < end:
                    break
                self._take(head, bytes(received[start + HEAD_BYTES : end]))
                start = end
        except Exception as error:  # it talks nonsense
            if not self.gone.done():
                self.gone.set_exception(error)
        del received[:start]

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - how its end closed does not matter
        if not self.gone.done():
            self.gone.set_result(None)

    def _take(self, head: Head, body: bytes) -> None:
        self.awake = True
        if head.verb is Verb.REPLY:
            self._calls[head.call].add(body)
        elif head.verb is Verb.END:
            self._calls.pop(head.call).end(None)
        else:
            assert head.verb is Verb.BUG
            self._calls.pop(head.call).end(RuntimeError(f"in the byte worker:\n{body.decode()}"))

    async def reaped(self) -> int:
        """Make sure the process is dead, and reap it; returns its status."""
        self.kill()
        self._transport.close()
        reapable = asyncio.Event()
        self._loop.add_reader(self._pidfd, reapable.set)
        try:
            await reapable.wait()
        finally:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        return self.process.wait()

    def fail_all(self, why: str) -> None:
        while self._calls:
            self._calls.popitem()[1].end(TierFault(Fault.IO, why))


def _exec(module: str, channel: int, segment_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the child by vfork and exec: nothing of the daemon's memory is copied.

    On the calling thread, on purpose: the kernel ends the child when the thread that started it ends.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-m", module, str(channel), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(channel, *segment_fds),
    )


async def _outlive(future: asyncio.Future[None]) -> None:
    """Wait until `future` is done, whoever cancels the waiter meanwhile; then pass the cancellation on."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
