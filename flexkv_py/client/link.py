"""One connected socket, shared by the threads that call.

Owns who reads: there is no reader thread. The first thread that waits *leads*: it reads for all and
wakes the others, who *follow*, as their replies come; when it has its own, it hands the reading to a
follower. One watcher thread waits for hang-up alone, so that a loss is noticed while nobody calls.
What the bytes mean is `client.session`'s; when to connect again is `client.client`'s.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flexkv_py.client.calls import Call, Handle, Reply, close_all, lost_meanwhile
from flexkv_py.client.gates import Gates, GateWatch
from flexkv_py.client.session import Session
from flexkv_py.client.sockets import ANCILLARY_BYTES, RECEIVE_FLAGS, descriptors_of
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import ClientMessage, GateArray, Load, Message, Opened, Welcome

RECEIVE_BYTES = 64 * 1024
DRAIN_READS_MAX = 64


def _closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Follower:
    """A thread that waits while another reads. It is woken when its call ended, or when it shall lead."""

    leads: bool = False
    waker: threading.Lock = field(default_factory=_closed_lock)


class Link:
    """A connection in use. Every method may be called by any thread.

    `lock` guards the session and the fields below; nobody waits while holding it.
    """

    def __init__(self, connection: socket.socket, session: Session, lock: threading.Lock) -> None:
        connection.setblocking(False)
        self.lost = False
        self.life = session.life  # what is opened here is void when the session's life is another
        self._socket = connection
        self._session = session
        self._lock = lock
        self._sending = threading.Lock()  # a frame goes out whole before the next begins
        self._unsent = bytearray()  # frames that nobody waits for; guarded by `_sending`
        self._reading = False  # some thread leads; the three fields below are its alone
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._followers: dict[int, _Follower] = {}  # by id of the call they wait for
        self._hung_up = False  # the peer is gone, though what it said last may still wait to be read
        self._users = 1  # threads that may touch the socket, the watcher included: the last one closes it
        self._gate_watch: GateWatch | None = None
        self._watcher = threading.Thread(target=self._watch, name="flexkv-hang-up", daemon=True)
        self._watcher.start()

    def greet(self, deadline_s: float) -> Welcome:
        """Say hello and return the answer; `deadline_s` is on `time.monotonic`, as everywhere here."""
        with self._lock:
            if self.lost:  # the watcher may have met the end before there was a call that it could fail
                raise lost_meanwhile(self._session.parting)
            call = self._session.greet()
            self._users += 1
        return self._run(call, (), deadline_s).result()

    def exchange(
        self,
        message: ClientMessage,
        expect: type[Reply],
        deadline_s: float,
        about: Handle | None = None,
        descriptors: Sequence[int] = (),
    ) -> Reply:
        """Send a request, wait for its reply. Raises what the daemon answers, DAEMON_LOST, DEADLINE_EXCEEDED."""
        return self._exchange(message, expect, deadline_s, about, descriptors).result()

    def fetch(self, message: ClientMessage, expect: type[Reply], deadline_s: float) -> tuple[Reply, list[int]]:
        """Like `exchange`, for a reply with descriptors: they are the caller's."""
        call = self._exchange(message, expect, deadline_s)
        return call.result(), call.descriptors

    def load_gated(
        self, gates: Gates, over_s: float, build: Callable[[GateArray], Load], deadline_s: float, about: Handle
    ) -> Opened:
        """`exchange` for a load with gates, which must be over at `over_s`; whatever comes of it opens them."""
        with self._lock:
            if self.lost:
                raise lost_meanwhile(self._session.parting)
            call, value = self._session.start_gated(gates, over_s, build, about), gates.value
            self._gate_watch = self._gate_watch or GateWatch(self._session.gated, self._lock, self._lose)
            self._gate_watch.look()
            self._users += 1
        try:
            return self._run(call, (), deadline_s).result()
        finally:
            if call.is_void:
                with self._lock:
                    self._session.gated.give_up(gates, value)

    def wait_for_pages(self, deadline_s: float) -> bool:
        """Whether there is news of pages that nobody took, waiting for the first. Raises DAEMON_LOST."""
        with self._lock:
            if self.lost:
                raise lost_meanwhile(self._session.parting)
            if self._session.news:
                return True
            call = self._session.await_news()
            self._users += 1
        try:
            self._wait(call, deadline_s)
        finally:
            self._forsake(call)
        if call.ended:
            call.result()
        return call.ended

    def post(self) -> None:
        """Send what is owed and waited for by nobody, as far as it goes at once; what is left goes out first next time.

        While another thread sends, nothing goes: the next call or poll takes it along.
        """
        if not self._session.owing and not self._unsent:
            return
        if not self._sending.acquire(blocking=False):
            return
        with self._lock:
            if self.lost:
                self._sending.release()
                return
            self._users += 1
        try:
            self._send_owed()
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # whoever reads meets the end too, after what the daemon said last
        finally:
            self._sending.release()
            with self._lock:
                self._leave()

    def drain(self) -> None:
        """Take what has come, without waiting; where a thread leads, it does so already."""
        self.post()
        with self._lock:
            if self._reading or self.lost:
                return
            self._reading = True
            self._users += 1
        try:
            reads = 0
            while reads < DRAIN_READS_MAX and self._receive():
                reads += 1
            self._hand_over()
        finally:
            with self._lock:
                self._leave()

    def close(self, why: str) -> None:
        """End the connection and every call on it; returns when the watcher is gone."""
        with self._lock:
            self._lose(why)
        self._watcher.join()
        if self._gate_watch is not None:
            self._gate_watch.join()

    def close_in_fork(self) -> None:
        """Close a forked child's copy, or the daemon would believe in this session until the child ends."""
        self._socket.close()

    # ------------------------------------------------------------ the calls

    def _exchange(
        self,
        message: ClientMessage,
        expect: type[Reply],
        deadline_s: float,
        about: Handle | None = None,
        descriptors: Sequence[int] = (),
    ) -> Call[Reply]:
        with self._lock:
            if self.lost:
                raise lost_meanwhile(self._session.parting)
            call = self._session.start(message, expect, about)
            self._users += 1
        return self._run(call, descriptors, deadline_s)

    def _run(self, call: Call[Reply], descriptors: Sequence[int], deadline_s: float) -> Call[Reply]:
        """The call, ended."""
        try:
            self._send(call, descriptors, deadline_s)
            self._wait(call, deadline_s)
        finally:
            self._forsake(call)
        if not call.ended:
            raise _late("no reply came")
        return call

    def _forsake(self, call: Call[Reply]) -> None:
        """This thread is done with the call, and with the socket."""
        with self._lock:
            if not call.ended:
                self._session.abandon(call)
            self._leave()

    def _send(self, call: Call[Reply], descriptors: Sequence[int], deadline_s: float) -> None:
        if not self._sending.acquire(timeout=_remaining_s(deadline_s)):
            raise _late("another thread's request was still being sent")
        frame, sent = call.frame, 0
        try:
            while sent < len(frame):
                try:
                    if sent == 0:
                        self._send_owed()
                    if descriptors and sent == 0:
                        sent = socket.send_fds(self._socket, [frame], descriptors)
                    else:
                        sent += self._socket.send(memoryview(frame)[sent:])
                    call.sent = True
                except BlockingIOError:
                    self._wait_for_room(deadline_s)
        except ConnectionError:
            pass  # whoever reads meets the end too, after what the daemon said last
        except OSError as error:
            with self._lock:
                self._lose(f"sending failed: {error.strerror}")
        except BaseException:
            if sent:  # half a request leaves nothing to say on this connection
                with self._lock:
                    self._lose("a request could not be sent whole in time")
            raise
        finally:
            self._sending.release()

    def _send_owed(self) -> None:
        """Send what nobody waits for; `_sending` is held. Raises BlockingIOError where the socket takes no more.

        More is taken from the session, which bounds it, only when the last of it is out.
        """
        while self._unsent or self._session.owing:
            if not self._unsent:
                with self._lock:
                    self._unsent += self._session.posts()
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def _wait_for_room(self, deadline_s: float) -> None:
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        if not writable.poll(1000 * _remaining_s(deadline_s)):
            raise _late("the daemon did not read the request")

    # ----------------------------------------------------- leaders, followers

    def _wait(self, call: Call[Reply], deadline_s: float) -> None:
        """Return when the call has ended or its deadline has passed."""
        follower = None
        with self._lock:
            if call.ended:
                return
            if self._reading:
                follower = self._followers[call.id] = _Follower()
            self._reading = True
        if follower is None or self._follow(call.id, follower, deadline_s):
            self._lead(call, deadline_s)

    def _follow(self, request: int, follower: _Follower, deadline_s: float) -> bool:
        """Wait to be woken; True when this thread must lead from now on."""
        try:
            follower.waker.acquire(timeout=_remaining_s(deadline_s))
        except BaseException:  # an interrupted thread must not be the one that all others rely on
            self._stop_following(request)
            if follower.leads:
                self._hand_over()
            raise
        self._stop_following(request)
        return follower.leads

    def _stop_following(self, request: int) -> None:
        with self._lock:
            self._followers.pop(request, None)

    def _lead(self, call: Call[Reply], deadline_s: float) -> None:
        try:
            while not call.ended and (left_s := _remaining_s(deadline_s)) > 0:
                if self._readable.poll(1000 * left_s):
                    self._receive()
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Stop leading: the follower who waits longest goes on, if there is one."""
        with self._lock:
            self._reading = bool(self._followers)
            if self._followers:
                follower = self._followers.pop(next(iter(self._followers)))
                follower.leads = True
                follower.waker.release()
            unread = self._hung_up and not self._reading
        if unread:
            self.drain()

    def _receive(self) -> bool:
        """Read once and wake whoever was answered; False when nothing has come or the end is reached."""
        descriptors: list[int] = []
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into([self._received], ANCILLARY_BYTES, RECEIVE_FLAGS)
            descriptors = descriptors_of(ancillary) if ancillary else []
        except BlockingIOError:
            return False
        except OSError as error:
            count, why = 0, error.strerror or str(error)
        else:
            why = "it closed the connection"
        with self._lock:
            if count == 0:
                close_all(descriptors)
                self._lose(why)
                return False
            try:
                for call in self._session.receive(self._received[:count], descriptors):
                    self._wake(call)
            except FlexKVError as error:
                self._lose(error.message)
        return not self.lost

    def _wake(self, call: Call[Message]) -> None:
        follower = self._followers.pop(call.id, None)
        if follower is not None:
            follower.waker.release()

    # ------------------------------------------------------------------ loss

    def _watch(self) -> None:
        hang_up = select.poll()
        hang_up.register(self._socket, select.POLLRDHUP)
        hang_up.poll()
        with self._lock:
            self._hung_up = True
        self.drain()
        with self._lock:
            self._leave()

    def _lose(self, why: str) -> None:
        """End this connection and all that hangs on it. The lock is held."""
        if self.lost:
            return
        self.lost = True
        self._session.lose(why)
        if self._gate_watch is not None:
            self._gate_watch.close()
        for follower in self._followers.values():
            follower.waker.release()
        self._followers.clear()
        with contextlib.suppress(OSError):  # wakes the leader and the watcher
            self._socket.shutdown(socket.SHUT_RDWR)

    def _leave(self) -> None:
        """One thread fewer uses the socket. The lock is held."""
        self._users -= 1
        assert self._users >= 0
        if self._users == 0:
            self._socket.close()


def _remaining_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())


def _late(why: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DEADLINE_EXCEEDED,
        f"{why} within the call's deadline: give it a larger timeout_s, or look whether the daemon is overloaded",
    )
