"""Operations on many blocks: evict, demote, prefetch. Each goes on in slices, after every event, until all is done.

First the blocks are gathered, then each is dealt with: at once, or by a write or a read whose end is waited for. What
each kind does with a block is said in `acts`.
"""

from __future__ import annotations

from collections import Counter, deque

from flexkv_py.core.blocks import Block
from flexkv_py.core.messages import Tier
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode
from flexkv_py.operating.acts import Act, Begun, Done, Kept, act_of
from flexkv_py.operating.gathering import Gathering
from flexkv_py.operating.messages import (
    OperationAdvanced,
    OperationAsked,
    OperationCancelled,
    OperationEnded,
    OperationKind,
    WishRefused,
)
from flexkv_py.operating.rules import Changes

OPERATIONS_MAX = 16
DEALT_PER_EVENT_MAX = 32
UNDER_WAY_MAX = 64  # blocks of one operation that wait for a write or a read: all are looked at after every event
PROGRESS_NS = 100_000_000


class Operation:
    """One operation and how far it is."""

    def __init__(self, state: State, event: OperationAsked) -> None:
        self.number = event.operation
        self.deadline_ns = event.deadline_ns
        self.bytes_max = event.choice.bytes_max
        self.act: Act = act_of(state, event.kind, event.tier, event.deadline_ns)
        self.gathering: Gathering | None = Gathering(state, event.choice, event.kind, event.tier)
        self.left: deque[Block] = deque()
        self.under_way: list[Begun] = []
        self.total = self.done = self.blocks = self.bytes = self.kept = 0
        self.reasons: Counter[str] = Counter()  # why blocks were kept
        self.told_ns, self.told = 0, -1

    def note(self, what: Done | Kept) -> None:
        """One block is dealt with."""
        self.done += 1
        if isinstance(what, Kept):
            self.keep(what.why)
        elif what.bytes:
            self.blocks += 1
            self.bytes += what.bytes

    def keep(self, why: str, count: int = 1) -> None:
        """Blocks stay as they were."""
        self.kept += count
        self.reasons[why] += count

    @property
    def enough(self) -> bool:
        """Whether no more blocks need be begun with, unless some that are under way come to nothing."""
        return 0 < self.bytes_max <= self.bytes + sum(begun.bytes for begun in self.under_way)


class Operations:
    """All that run, each in its turn."""

    def __init__(self, state: State, changes: Changes) -> None:
        self._state, self._changes = state, changes
        self.running: dict[int, Operation] = {}

    def on_asked(self, event: OperationAsked) -> None:
        """Begin it, or refuse it with a code."""
        refusal = self._refusal(event)
        if refusal is not None:
            self._state.out.append(WishRefused(event.operation, *refusal))
            return
        self.running[event.operation] = Operation(self._state, event)
        self._state.wake_at(event.deadline_ns)

    def _refusal(self, event: OperationAsked) -> tuple[ErrorCode, str] | None:
        state, word = self._state, event.tier.name.lower()
        lowest = Tier.DRAM if event.kind is OperationKind.EVICT else Tier.SSD
        if event.kind is not OperationKind.PREFETCH and (event.tier not in state.levels or event.tier < lowest):
            return ErrorCode.TIER_UNAVAILABLE, f"{event.kind} {word}: this daemon has no such tier: name one it has"
        level = state.levels[event.tier]
        if not level.up:
            why = f"{event.kind} {word}: the tier is down ({level.down_reason}): try again when it is up"
            return ErrorCode.TIER_UNAVAILABLE, why
        if event.kind is OperationKind.PREFETCH and state.draining:
            return ErrorCode.DRAINING, "the daemon drains and fetches nothing ahead: resume it first"
        if len(self.running) >= OPERATIONS_MAX:
            return ErrorCode.LIMIT_EXCEEDED, f"{OPERATIONS_MAX} operations run already: wait for one to end"
        return None

    def on_cancelled(self, event: OperationCancelled) -> None:
        """End it; what is on its way runs to its end."""
        operation = self.running.get(event.operation)
        if operation is not None:
            self._give_up(operation, "cancelled")

    def go_on(self) -> None:
        """A slice of each."""
        if not self.running and not self._changes.held:
            return
        walking = None
        for operation in list(self.running.values()):
            if operation.deadline_ns <= self._state.now_ns:
                self._give_up(operation, "left when the deadline passed")
            elif operation.gathering is None:
                self._deal(operation)
            elif not operation.gathering.walks:
                self._gather(operation, operation.gathering)
            elif walking is None and not self._changes.moving:  # a list has one hand
                walking = operation.gathering
                self._gather(operation, walking)
        self._changes.held = walking is not None and not walking.over

    def _gather(self, operation: Operation, gathering: Gathering) -> None:
        self._state.more = True
        if gathering.slice():
            return
        operation.gathering = None
        operation.left.extend(gathering.found)
        pinned = sum(gathering.means_pinned(copy) for copy in self._state.pinned)
        operation.total = len(operation.left) + gathering.missing + pinned
        operation.done = gathering.missing + pinned
        operation.keep("pinned", pinned)
        operation.keep("in no tier", gathering.missing)
        self._tell(operation)

    def _deal(self, operation: Operation) -> None:
        """Look at all that are under way, then begin with more."""
        state, act, left = self._state, operation.act, operation.left
        waiting, operation.under_way = operation.under_way, []
        for begun in waiting:
            ended = act.end(begun)
            if ended is None:
                operation.under_way.append(begun)
            else:
                operation.note(ended)
        for _ in range(DEALT_PER_EVENT_MAX):
            if operation.enough or not left or len(operation.under_way) >= UNDER_WAY_MAX:
                break
            began = act.begin(left[0])
            if began is None:
                break
            left.popleft()
            if isinstance(began, Begun):
                operation.under_way.append(began)
            else:
                operation.note(began)
        else:
            state.more = True
        self._tell(operation)
        if not operation.under_way and (operation.enough or not left):
            self._end(operation)

    def _give_up(self, operation: Operation, why: str) -> None:
        if operation.gathering is not None:
            operation.gathering.end()
        for begun in operation.under_way:
            operation.act.abandon(begun)
        operation.keep(why, len(operation.left) + len(operation.under_way))
        self._end(operation, why)

    def _end(self, operation: Operation, why: str = "") -> None:
        del self.running[operation.number]
        detail = ", ".join(f"{count} {reason}" for reason, count in operation.reasons.items() if count) or why
        ended = OperationEnded(operation.number, operation.blocks, operation.bytes, operation.kept, detail)
        self._state.out.append(ended)

    def _tell(self, operation: Operation) -> None:
        """How far it is, ten times a second at most."""
        now_ns = self._state.now_ns
        if operation.done != operation.told and (now_ns >= operation.told_ns + PROGRESS_NS or not operation.told_ns):
            operation.told, operation.told_ns = operation.done, now_ns
            self._state.out.append(OperationAdvanced(operation.number, operation.done, operation.total))
