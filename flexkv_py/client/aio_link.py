"""One connected socket on a running loop, for `client.aio`.

A raw socket, because asyncio's transports cannot pass descriptors. The loop reads for all calls, so
there are neither leaders nor a watcher as in `client.link`; what the bytes mean is `client.session`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from flexkv_py.client.calls import Call, Handle, Reply, lost_meanwhile
from flexkv_py.client.gates import OVERDUE, Gates
from flexkv_py.client.session import Session
from flexkv_py.client.sockets import ANCILLARY_BYTES, RECEIVE_FLAGS, descriptors_of
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import ClientMessage, GateArray, Load, Opened, Welcome

RECEIVE_BYTES = 64 * 1024


class AsyncLink:
    """A connection in use on one loop."""

    def __init__(self, connection: socket.socket, session: Session) -> None:
        connection.setblocking(False)
        self.lost = False
        self.life = session.life
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._session = session
        self._sending = asyncio.Lock()  # a frame goes out whole before the next begins
        self._unsent = bytearray()  # frames that nobody waits for, and the rest of one of them
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by id of the call
        self._writable: asyncio.Future[None] | None = None  # of the one task that sends and must wait for room
        self._gate_timer: asyncio.TimerHandle | None = None  # of the next look at gates
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._loop.add_reader(connection, self._receive)

    async def greet(self, deadline_s: float) -> Welcome:
        """Say hello and return the answer; `deadline_s` is on the loop's clock, as everywhere here."""
        self._check_alive()
        return (await self._run(self._session.greet(), (), deadline_s)).result()

    async def exchange(
        self,
        message: ClientMessage,
        expect: type[Reply],
        deadline_s: float,
        about: Handle | None = None,
        descriptors: Sequence[int] = (),
    ) -> Reply:
        """Send a request, wait for its reply. Raises what the daemon answers, DAEMON_LOST, DEADLINE_EXCEEDED."""
        self._check_alive()
        return (await self._run(self._session.start(message, expect, about), descriptors, deadline_s)).result()

    async def fetch(self, message: ClientMessage, expect: type[Reply], deadline_s: float) -> tuple[Reply, list[int]]:
        """Like `exchange`, for a reply with descriptors: they are the caller's."""
        self._check_alive()
        call = await self._run(self._session.start(message, expect), (), deadline_s)
        return call.result(), call.descriptors

    async def load_gated(
        self, gates: Gates, over_s: float, build: Callable[[GateArray], Load], deadline_s: float, about: Handle
    ) -> Opened:
        """`exchange` for a load with gates, which must be over at `over_s`; whatever comes of it opens them."""
        self._check_alive()
        call, value = self._session.start_gated(gates, over_s, build, about), gates.value
        self._watch_gates()
        try:
            return (await self._run(call, (), deadline_s)).result()
        finally:
            if call.is_void:
                self._session.gated.give_up(gates, value)

    def _watch_gates(self) -> None:
        """Look again when the next load with gates must be over."""
        check_s, timer = self._session.gated.next_check_s, self._gate_timer
        if check_s is None or (timer is not None and timer.when() <= check_s):
            return
        if timer is not None:
            timer.cancel()
        self._gate_timer = self._loop.call_at(check_s, self._check_gates)

    def _check_gates(self) -> None:
        self._gate_timer = None
        if self._session.gated.overdue(self._loop.time()):
            self.lose(OVERDUE)
        else:
            self._watch_gates()

    async def wait_for_pages(self, deadline_s: float) -> bool:
        """Whether there is news of pages that nobody took, waiting for the first. Raises DAEMON_LOST."""
        self._check_alive()
        if self._session.news:
            return True
        call = self._session.await_news()
        if not await self._ended(call, (), deadline_s):
            return False
        call.result()
        return True

    def post(self) -> None:
        """Send what is owed and waited for by nobody, as far as it goes at once; the rest goes out first next time.

        While a frame is half out nothing goes: the next call takes it along.
        """
        if self.lost or self._sending.locked() or not (self._session.owing or self._unsent):
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the reader meets an end too
            self._send_owed()

    def _send_owed(self) -> None:
        """Send what nobody waits for. Raises BlockingIOError; see `client.link`."""
        while self._unsent or self._session.owing:
            self._unsent = self._unsent or self._session.posts()
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def _check_alive(self) -> None:
        if self.lost:
            raise lost_meanwhile(self._session.parting)

    async def _run(self, call: Call[Reply], descriptors: Sequence[int], deadline_s: float) -> Call[Reply]:
        """The call, ended."""
        if not await self._ended(call, descriptors, deadline_s):
            raise FlexKVError(
                ErrorCode.DEADLINE_EXCEEDED,
                "no reply came within the call's deadline: give it a larger timeout_s, "
                "or look whether the daemon is overloaded",
            )
        return call

    async def _ended(self, call: Call[Reply], descriptors: Sequence[int], deadline_s: float) -> bool:
        """Send the call and wait for its end; False when the deadline came first."""
        ended = self._waiting[call.id] = self._loop.create_future()
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._send(call, descriptors)
                await ended
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(call.id, None)
            if not call.ended:
                self._session.abandon(call)
        return True

    async def _send(self, call: Call[Reply], descriptors: Sequence[int]) -> None:
        async with self._sending:
            frame, sent = call.frame, 0
            try:
                while sent < len(frame) and not self.lost:
                    try:
                        if sent == 0:
                            self._send_owed()
                        if descriptors and sent == 0:
                            sent = socket.send_fds(self._socket, [frame], descriptors)
                        else:
                            sent += self._socket.send(memoryview(frame)[sent:])
                        call.sent = True
                    except BlockingIOError:
                        await self._room()
            except ConnectionError:
                pass  # the reader meets the end too, after what the daemon said last
            except OSError as error:
                self.lose(f"sending failed: {error.strerror}")
            except BaseException:
                if sent:  # half a request leaves nothing to say on this connection
                    self.lose("a request could not be sent whole in time")
                raise

    async def _room(self) -> None:
        """Return when the socket takes more, or is lost."""
        writable = self._writable = self._loop.create_future()
        self._loop.add_writer(self._socket, self._write_on)
        try:
            await writable
        finally:
            self._writable = None
            if not self.lost:
                self._loop.remove_writer(self._socket)

    def _write_on(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _receive(self) -> None:
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into([self._received], ANCILLARY_BYTES, RECEIVE_FLAGS)
        except BlockingIOError:
            return None
        except OSError as error:
            return self.lose(error.strerror or str(error))
        if count == 0:
            return self.lose("it closed the connection")
        try:
            for call in self._session.receive(self._received[:count], descriptors_of(ancillary)):
                self._wake(call.id)
        except FlexKVError as error:
            self.lose(error.message)

    def _wake(self, request: int) -> None:
        ended = self._waiting.get(request)
        if ended is not None and not ended.done():
            ended.set_result(None)

    def lose(self, why: str) -> None:
        """End this connection and all that hangs on it."""
        if self.lost:
            return
        self.lost = True
        self._session.lose(why)
        if self._gate_timer is not None:
            self._gate_timer.cancel()
        for request in list(self._waiting):
            self._wake(request)
        self._write_on()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def close_in_fork(self) -> None:
        """Close a forked child's copy alone; the parent's connection lives on."""
        self.lost = True
        os.close(self._socket.detach())
