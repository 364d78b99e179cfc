"""All running requests: by session and by name, what each may be told next, and what waits for room.

Owns the limits of the row path and which session may attach what. Called by `core.rows`, which knows blocks and copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flexkv_py.errors import ErrorCode
from flexkv_py.rows.grants import NO_TURN, CopyT, IndexT, Rank, Request
from flexkv_py.rows.messages import AbsentEntry, HeatEntry, RequestAttached
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.policy import Place, RequestId, RowPolicy
from flexkv_py.tenants.owner import Owner

HUNCHES_WAITING_MAX = 64
"""So few that what waits for room is still needed when it gets it."""


@dataclass(frozen=True, slots=True)
class RowLimits:
    """What the planner is told of the row path. Times in nanoseconds."""

    policy: str = "sparse"

    requests_per_session_max: int = 1024
    blocks_per_request_max: int = 65_536
    blocks_per_session_max: int = 4_194_304
    """Of all its requests together."""
    ack_ns_max: int = 5_000_000_000
    """A worker that does not acknowledge a revocation within this loses its session."""
    replay_ns_max: int = 5_000_000_000
    """What a failed step needs comes within this, or is refused."""
    absent_replays_max: int = 64
    """A step that fails more often in a row is refused."""
    pinned_share_max: float = 0.5
    """Of DRAM, for what one failed step needs."""
    let_go_per_event_max: int = 256
    """Blocks of requests that end, and revocations acknowledged; as many as one attach has keys. The rest waits."""


EntryT = TypeVar("EntryT", HeatEntry, AbsentEntry)


def by_request(entries: Iterable[EntryT]) -> dict[int, list[EntryT]]:
    """Entries of a report by the engine's number of their request."""
    sorted_out: dict[int, list[EntryT]] = {}
    for entry in entries:
        sorted_out.setdefault(entry.request, []).append(entry)
    return sorted_out


@dataclass(slots=True, eq=False)
class Want(Generic[CopyT, IndexT]):
    """A block of which a failed step needs some chunks."""

    request: Request[CopyT, IndexT]
    position: int
    reads: int = 0
    """Promotions started for it."""


class Requests(Generic[CopyT, IndexT]):
    """See the module's docstring."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits = limits
        self.policy: RowPolicy = ROW_POLICIES[limits.policy]()
        self.by_id: dict[RequestId, Request[CopyT, IndexT]] = {}
        self.of_session: dict[int, dict[int, Request[CopyT, IndexT]]] = {}  # by the engine's number; until it is gone
        self.changed: dict[Request[CopyT, IndexT], None] = {}  # there is something to tell
        self.letting_go: dict[Request[CopyT, IndexT], None] = {}  # over, reset, or with acknowledgements to settle
        self.going: dict[CopyT, int] = {}  # chunks (mask) that leave DRAM as soon as nobody reads them
        self.hunches: deque[Place] = deque(maxlen=HUNCHES_WAITING_MAX)  # to be brought back; older ones are given up
        self.wants: dict[Request[CopyT, IndexT], deque[Want[CopyT, IndexT]]] = {}
        """Requests whose steps fail, the one that has longest first; and what is still to be read for each."""
        self.coming: deque[Want[CopyT, IndexT]] = deque()  # of these, what is on its way
        self.elder: Request[CopyT, IndexT] | None = None  # the first of them that found no room in the last event
        self.short_pages = 0  # what was in vain asked of DRAM while the last event was handled
        self.short_of: Owner[Any] | None = None  # whose quota alone was short, where it was not DRAM itself
        self._names: dict[tuple[IndexT, str | int, int], Request[CopyT, IndexT]] = {}
        self._made = 0
        self._turns = 0

    def begin_turn(self, request: Request[CopyT, IndexT]) -> None:
        """A step of it fails: it is the youngest of those that do, unless it is among them already."""
        if request not in self.wants:
            self._turns += 1
            request.turn, self.wants[request] = self._turns, deque()

    def want(self, request: Request[CopyT, IndexT], position: int) -> None:
        """A failed step needs chunks of this block that it has not."""
        self.begin_turn(request)
        self.wants[request].append(Want(request, position))

    def end_turn(self, request: Request[CopyT, IndexT], *, late: bool = False) -> None:
        """If none of its ranks waits any more, or too late: what it has pinned yields to every step that fails."""
        if late or not any(rank.wanted for rank in request.ranks.values()):
            self.wants.pop(request, None)
            self.elder = None if self.elder is request else self.elder
            request.turn = NO_TURN

    def short(self, owner: Owner[Any] | None, pages: int) -> None:
        """So much was in vain asked of DRAM, or (with an owner) of its quota there; DRAM itself counts first."""
        if not self.short_pages or owner is None:
            self.short_of = owner
        self.short_pages = max(self.short_pages, pages)

    def find(self, session: int, called: int) -> tuple[Request[CopyT, IndexT], Rank] | None:
        """A request this session has attached, and its rank there."""
        request = self.of_session.get(session, {}).get(called)
        return None if request is None else (request, request.ranks[session])

    def named(self, index: IndexT, owner: str | int, called: int) -> Request[CopyT, IndexT] | None:
        """A request of an instance (or of a session that is alone), whichever rank attached it."""
        return self._names.get((index, owner, called))

    def refusal(self, request: Request[CopyT, IndexT] | None, event: RequestAttached) -> tuple[ErrorCode, str] | None:
        """Why this may not be attached, in a code and a sentence; None when it may."""
        limits, mine = self.limits, self.of_session.get(event.session, {})
        rank = None if request is None else request.ranks.get(event.session)
        if rank is None and len(mine) >= limits.requests_per_session_max:
            why = f"this session has {len(mine)} requests attached (requests_per_session_max): detach some first"
            return ErrorCode.LIMIT_EXCEEDED, why
        count = event.first + len(event.keys)
        if count > limits.blocks_per_request_max:
            why = f"{count} blocks are more than a request may have (blocks_per_request_max): raise it"
            return ErrorCode.LIMIT_EXCEEDED, why
        attached = 0 if rank is None else rank.attached
        more, held = count - attached, sum(each.ranks[event.session].attached for each in mine.values())
        if more > 0 and held + more > limits.blocks_per_session_max:
            why = f"this session has {held} blocks attached (blocks_per_session_max): detach requests, or raise it"
            return ErrorCode.LIMIT_EXCEEDED, why
        if event.first > attached:
            why = f"first = {event.first} leaves a hole: this session has attached {attached} blocks, go on from there"
            return ErrorCode.BAD_ARGUMENT, why
        if request is None:
            return None
        known = request.keys[event.first :]
        if known[: len(event.keys)] != event.keys[: len(known)]:
            why = f"request {event.request} has other keys there: detach it, or give new requests new numbers"
            return ErrorCode.BAD_ARGUMENT, why
        twice = next((key for key in event.keys[len(known) :] if key in request.positions), None)
        if twice is not None:
            why = f"key {twice.hex()} is attached already as block {request.positions[twice]}: it has one place"
            return ErrorCode.DUPLICATE_KEY, why
        return None

    def join(self, index: IndexT, owner: str | int, event: RequestAttached) -> tuple[Request[CopyT, IndexT], Rank]:
        """The request and this session's rank in it, made where there is none yet."""
        name = (index, owner, event.request)
        request = self._names.get(name)
        if request is None:
            self._made += 1
            request = self._names[name] = Request(RequestId(self._made), index, owner, event.request)
            self.by_id[request.id] = request
        rank = request.ranks.get(event.session)
        if rank is None:
            rank = request.join(event.session)
            self.of_session.setdefault(event.session, {})[event.request] = request
        return request, rank

    def settle_going(self, copy: CopyT, chunks: int) -> None:
        """These chunks (mask) are not on their way out any more: they have left, or stay after all."""
        left = self.going.pop(copy, 0) & ~chunks
        if left:
            self.going[copy] = left

    def leave(self, request: Request[CopyT, IndexT], rank: Rank) -> None:
        """A rank reads nothing of the request any more; what nobody of it holds now is to be let go."""
        mine = self.of_session[rank.session]
        del mine[request.called]
        if not mine:
            del self.of_session[rank.session]
        request.leave(rank)
        self.end_turn(request)
        self.letting_go[request] = None
        if not request.ranks:
            del self.by_id[request.id]
            del self._names[request.index, request.owner, request.called]
            self.changed.pop(request, None)
        if not request.live:
            self.policy.detached(request.id)
