"""The row path's half of `client.session`: which requests are attached, what changed in their tables, what is owed.

Pure, and locked with the session. Owns the order of a request's versions and the limits on what waits here.
Page changes are kept until the engine takes them between two steps; acknowledgements and reports go out
without anybody waiting for them. What an engine holds of it is a `RowRequest` of `client.handles`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import (
    GRANTED_ENTRY_BYTES,
    REVOKED_ENTRY_BYTES,
    Ack,
    Attached,
    ClientMessage,
    LetGo,
    Pages,
    Report,
)

PAGES_PENDING_MAX = 4096
"""Changes of one request that the engine has not taken. The daemon ends the session long before, for want of an ack."""

REPORTS_UNSENT_MAX = 4
"""Reports that wait for room in the socket. A newer one says more, so the oldest goes first."""

NUMBER_MAX = (1 << 32) - 1


@dataclass(slots=True, eq=False)
class AttachedRequest:
    """One request in one life of the connection.

    `pending` are versions that came and were not taken by the engine, oldest first; `lost` says why the life ended.
    """

    request: int
    life: int
    session: int
    block_count: int = 0
    newest: int = 0
    taken: int = 0
    acknowledged: int = 0
    pending: deque[Pages] = field(default_factory=deque)
    lost: FlexKVError | None = None

    def begin(self, attached: Attached) -> None:
        """The daemon has attached it, to a table that other ranks may have brought to a version already."""
        self.block_count = attached.block_count
        self.newest = max(self.newest, attached.version)
        self.taken = max(self.taken, attached.version)
        self.acknowledged = attached.version

    def require_alive(self) -> None:
        """Raise why the connection was lost, and the request with it."""
        if self.lost is not None:
            raise FlexKVError(self.lost.code, f"request {self.request} is lost: {self.lost.message}")


@dataclass(slots=True)
class Rows:
    """Everything of the row path that one client knows."""

    attached: dict[int, AttachedRequest] = field(default_factory=dict)  # of the present life, by request
    failure: FlexKVError | None = None  # the first refusal of something nobody waited for, until it is raised
    reports_dropped: int = 0
    _changed: dict[int, AttachedRequest] = field(default_factory=dict)  # those with pending changes, in that order
    _former: dict[int, set[AttachedRequest]] = field(default_factory=dict)  # lost with their session, not let go of yet
    _acks: dict[int, int] = field(default_factory=dict)  # request → newest version to acknowledge, not sent yet
    _reports: deque[Report] = field(default_factory=deque)
    _let_go: list[int] = field(default_factory=list)  # sessions of this boot whose frames nobody reads any more

    # ---------------------------------------------------------- life of a request

    def open(self, request: int, life: int, session: int) -> AttachedRequest:
        """A request about to be attached. Raises BAD_ARGUMENT."""
        if not isinstance(request, int) or not 0 <= request <= NUMBER_MAX:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"request is {request!r}: number requests from 0 to {NUMBER_MAX}")
        if request in self.attached:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"request {request} is attached already: extend it, or detach it before its number is used again",
            )
        self.attached[request] = row = AttachedRequest(request, life, session)
        return row

    def forget(self, row: AttachedRequest) -> None:
        """The request is detached, or was never attached; of a lost session: it reads those rows no more."""
        if self.attached.get(row.request) is row:
            del self.attached[row.request]
            self._acks.pop(row.request, None)
            self._changed.pop(row.request, None)
        row.pending.clear()
        former = self._former.get(row.session)
        if former is not None:
            former.discard(row)
            if not former:
                del self._former[row.session]
                self._let_go.append(row.session)

    def lose(self, failure: FlexKVError) -> None:
        """The connection is lost: the tables stay as they are, and what they name stays held (see `forget`)."""
        for row in self.attached.values():
            row.lost = failure
            row.pending.clear()
            self._former.setdefault(row.session, set()).add(row)
        self.attached.clear()
        self._changed.clear()
        self._acks.clear()
        self._reports.clear()
        self.failure = None

    def restarted(self) -> None:
        """Another life of the daemon: it knows no session of this one."""
        self._former.clear()
        self._let_go.clear()

    # ------------------------------------------------------------- page changes

    @property
    def eventful(self) -> bool:
        """Whether the next look at page changes finds any, or raises a refusal."""
        return bool(self._changed) or self.failure is not None

    def arrived(self, pages: Pages) -> None:
        """A new version of a request's table. Raises BAD_MESSAGE or LIMIT_EXCEEDED: the connection must end."""
        row = self.attached.get(pages.request)
        if row is None:
            return  # it was detached while this was on its way
        torn = len(pages.granted) % GRANTED_ENTRY_BYTES or len(pages.revoked) % REVOKED_ENTRY_BYTES
        if pages.version <= row.newest or torn:
            raise FlexKVError(
                ErrorCode.BAD_MESSAGE,
                f"version {pages.version} of request {pages.request} after {row.newest}, {len(pages.granted)} and "
                f"{len(pages.revoked)} bytes long, is none of this protocol: install the same release on both ends",
            )
        if len(row.pending) >= PAGES_PENDING_MAX:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{PAGES_PENDING_MAX} page changes of request {pages.request} wait: take them between steps",
            )
        row.newest = pages.version
        row.pending.append(pages)
        self._changed[row.request] = row

    def take(self, row: AttachedRequest, version_max: int | None = None) -> list[Pages]:
        """Changes of one request up to `version_max` (None: all), oldest first. Raises why its life is over."""
        row.require_alive()
        self._raise_failure()
        taken = []
        while row.pending and (version_max is None or row.pending[0].version <= version_max):
            taken.append(row.pending.popleft())
        if taken:
            row.taken = taken[-1].version
        if not row.pending:
            self._changed.pop(row.request, None)
        return taken

    def take_all(self) -> list[Pages]:
        """Changes of every request."""
        self._raise_failure()
        return [pages for row in list(self._changed.values()) for pages in self.take(row)]

    def _raise_failure(self) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    # --------------------------------------------------------- what nobody waits for

    def acknowledge(self, row: AttachedRequest, version: int) -> None:
        """Owe the daemon an ack; a repeated one costs nothing. Raises BAD_ARGUMENT for a version never taken."""
        row.require_alive()
        if not isinstance(version, int) or not 0 <= version <= row.taken:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"version {version!r} of request {row.request} was not taken yet, the newest taken is {row.taken}: "
                "acknowledge a version after it was applied",
            )
        if version > row.acknowledged:
            row.acknowledged = self._acks[row.request] = version

    def report(self, report: Report) -> None:
        """Owe the daemon a report."""
        if len(self._reports) >= REPORTS_UNSENT_MAX:
            self._reports.popleft()
            self.reports_dropped += 1
        self._reports.append(report)

    @property
    def owing(self) -> bool:
        """Whether anything is due."""
        return bool(self._acks or self._reports or self._let_go)

    def take_due(self) -> list[ClientMessage]:
        """What is owed, in the order in which it should go out."""
        due: list[ClientMessage] = [LetGo(0, session) for session in self._let_go]
        due += [Ack(0, request, version) for request, version in self._acks.items()]
        due += self._reports
        self._let_go.clear()
        self._acks.clear()
        self._reports.clear()
        return due
