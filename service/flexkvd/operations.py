"""What an operator may have the planner do, as coroutines: pins, evictions, demotions, flushes, drain, other rules.

Owns who waits for which answer. Decides nothing: each is an event like any other, and listings read the planner's
state in slices. Called by the REST API's `Operator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexkv_py.core.messages import DrainStarted, FlushAsked, RequestRefused, TicketCancelled, TicketFinished, Tier
from flexkv_py.core.planner import Planner
from flexkv_py.core.policies import POLICIES
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.explain import explain
from flexkv_py.keys import KEY_BYTES, BlockKey, NamespaceDigest
from flexkv_py.operating.listing import BlockFacts, Page, Pinned, facts_of_key, pinned_blocks
from flexkv_py.operating.messages import (
    Choice,
    DrainEnded,
    OperationAdvanced,
    OperationAsked,
    OperationCancelled,
    OperationEnded,
    OperationKind,
    PinAnswered,
    PinAsked,
    Rules,
    RulesChanged,
    UnpinAnswered,
    UnpinAsked,
    WishRefused,
)
from flexkv_py.rows.policies import ROW_POLICIES
from flexkvd.engine import Engine
from flexkvd.readiness import Readiness
from flexkvd.sessions import Sessions

DRAIN_LOOK_S = 0.02
FACTS_PER_TURN_MAX = 64
"""Blocks of a page looked at before others get a turn."""
DEADLINE_S_DEFAULT = 600.0
OPERATOR_DRAINS = "the operator drains the daemon: resume it, or stop it"

ProgressCalled = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which blocks an operation means: `keys`, or all of which every other word is true.

    `prefix`: first hexadecimal digits of the key. `bytes_max`: of an eviction, enough is gone then; 0 = everything.
    """

    keys: Sequence[BlockKey] = ()
    prefix: str = ""
    tenant: str = ""
    except_tenant: str = ""
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class PinReport:
    """`pinned` keys have pinned copies of `bytes` in all; of the `missing` no tier has a whole copy."""

    pinned: int
    missing: list[BlockKey]
    bytes: int


@dataclass(frozen=True, slots=True)
class OperationReport:
    """Done with `blocks`, of `bytes` in all; `kept` were left as they were, and `detail` says why."""

    blocks: int
    bytes: int
    kept: int
    detail: str


class Operations:
    """See the module's docstring. Every method raises FlexKVError with a code where the wish is refused."""

    def __init__(self, engine: Engine, planner: Planner, sessions: Sessions, readiness: Readiness) -> None:
        self.tenant_of: Callable[[NamespaceDigest], str] = lambda _namespace: ""
        self.on_drain: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None
        self._engine = engine
        self._planner = planner
        self._sessions = sessions
        self._readiness = readiness
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._progress: dict[int, ProgressCalled] = {}
        engine.handlers |= {
            PinAnswered: lambda answer: self._answered(answer.request, answer),
            UnpinAnswered: lambda answer: self._answered(answer.request, answer),
            OperationAdvanced: self._advanced,
            OperationEnded: lambda answer: self._answered(answer.operation, answer),
            WishRefused: self._refused,
        }

    # -------------------------------------------------------------------- pins

    async def pin(self, keys: Sequence[BlockKey], ttl_s: float) -> PinReport:
        """Keep every copy these blocks have now, in whatever namespace, for `ttl_s`; pinned anew, that counts anew."""
        number = self._next()
        answer: PinAnswered = await self._ask(PinAsked(number, list(keys), int(ttl_s * 1e9), self._now_ns()), number)
        return PinReport(answer.pinned, answer.missing, answer.bytes)

    async def unpin(self, keys: Sequence[BlockKey]) -> int:
        """Let them go again; returns how many of the keys were pinned."""
        number = self._next()
        answer: UnpinAnswered = await self._ask(UnpinAsked(number, list(keys), self._now_ns()), number)
        return answer.unpinned

    def pins(self) -> list[Pinned]:
        """What is pinned: one entry for each block, and until when."""
        return pinned_blocks(self._planner.state)

    # -------------------------------------------------------------- operations

    async def evict(
        self,
        selection: Selection,
        tier: Tier,
        progress: ProgressCalled = no_progress,
        deadline_s: float = DEADLINE_S_DEFAULT,
    ) -> OperationReport:
        """Drop copies in a tier, the coldest first; what would be lost is demoted before."""
        return await self._operate(OperationKind.EVICT, self._choice(selection), tier, deadline_s, progress)

    async def demote(
        self, selection: Selection, to_tier: Tier, deadline_s: float, progress: ProgressCalled = no_progress
    ) -> OperationReport:
        """Give blocks a copy in a lower tier; the one above stays, ready to go."""
        return await self._operate(OperationKind.DEMOTE, self._choice(selection), to_tier, deadline_s, progress)

    async def prefetch(
        self, keys: Sequence[BlockKey], deadline_s: float, progress: ProgressCalled = no_progress
    ) -> OperationReport:
        """Give blocks, in whatever namespace, a copy in DRAM."""
        choice = Choice(keys=tuple(keys))
        return await self._operate(OperationKind.PREFETCH, choice, Tier.DRAM, deadline_s, progress)

    async def flush(self, to_tier: Tier, deadline_s: float, progress: ProgressCalled = no_progress) -> OperationReport:
        """Copy everything READY down to that tier, admission aside."""
        ended: asyncio.Future[TicketFinished | RequestRefused] = asyncio.get_running_loop().create_future()
        number = self._sessions.own_ticket(lambda end: None if ended.done() else ended.set_result(end))
        now_ns = self._now_ns()
        self._engine.post(FlushAsked(0, number, None, to_tier, now_ns + int(deadline_s * 1e9), now_ns))
        try:
            end = await ended
        except asyncio.CancelledError:
            self._engine.post(TicketCancelled(0, number, self._now_ns()))
            raise
        if isinstance(end, RequestRefused):
            raise FlexKVError(end.code, end.message)
        progress(end.stored, end.stored)
        return OperationReport(end.stored, 0, 0, end.detail)

    async def _operate(
        self, kind: OperationKind, choice: Choice, tier: Tier, deadline_s: float, progress: ProgressCalled
    ) -> OperationReport:
        number, now_ns = self._next(), self._now_ns()
        self._progress[number] = progress
        asked = OperationAsked(number, kind, choice, tier, now_ns + int(deadline_s * 1e9), now_ns)
        try:
            end: OperationEnded = await self._ask(asked, number)
        except asyncio.CancelledError:
            if not self._engine.broken:
                self._engine.post(OperationCancelled(number, self._now_ns()))
            raise
        finally:
            del self._progress[number]
        return OperationReport(end.blocks, end.bytes, end.kept, end.detail)

    def _choice(self, selection: Selection) -> Choice:
        """A selection in the planner's words, which knows no tenants."""
        namespaces: tuple[NamespaceDigest, ...] | None = None
        if selection.tenant or selection.except_tenant:
            known = dict.fromkeys(digest for digest, _ in self._planner.state.indexes)
            namespaces = tuple(digest for digest in known if self._fits(selection, self.tenant_of(digest)))
        return Choice(tuple(selection.keys), checked_prefix(selection.prefix), namespaces, selection.bytes_max)

    def _fits(self, selection: Selection, tenant: str) -> bool:
        return selection.tenant in ("", tenant) and (not selection.except_tenant or tenant != selection.except_tenant)

    # ---------------------------------------------------------------- look-ups

    async def blocks(self, prefix_hex: str = "", after: BlockKey | None = None, limit: int = 100) -> list[BlockFacts]:
        """The next keys after `after` that begin with these digits, in order, with what is known of each."""
        page = Page(self._planner.state, checked_prefix(prefix_hex), after, limit)
        while page.slice():  # noqa: ASYNC110 - each turn of the loop takes a slice
            await asyncio.sleep(0)
        found: list[BlockFacts] = []
        for number, key in enumerate(page.smallest):
            if number % FACTS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
            found += self.block(key)
        return found

    def block(self, key: BlockKey) -> list[BlockFacts]:
        """What is known of a block: one entry for each namespace and shard that has it."""
        return [self._named(facts) for facts in facts_of_key(self._planner.state, key)]

    def explain(self, key: BlockKey) -> str:
        """Why the block is, or is not, a hit now, in a sentence."""
        return explain(self._planner.state, key, self._now_ns())

    def _named(self, facts: BlockFacts) -> BlockFacts:
        return replace(facts, tenant=self.tenant_of(facts.namespace))

    # -------------------------------------------------------------- the daemon

    async def drain(self, deadline_s: float) -> int:
        """Admit nothing new and wait for what runs; returns how many tickets still run at the deadline."""
        readiness, sessions, loop = self._readiness, self._sessions, asyncio.get_running_loop()
        if not readiness.draining:
            readiness.draining, readiness.drain_reason = True, OPERATOR_DRAINS
            self._engine.post(DrainStarted(self._now_ns()))
            self.on_drain()
        end_s = loop.time() + deadline_s
        while sessions.busy and loop.time() < end_s:  # noqa: ASYNC110 - tickets end in many places
            await asyncio.sleep(DRAIN_LOOK_S)
        return sessions.running

    async def resume(self) -> None:
        """Undo a drain. Raises FlexKVError when the daemon is stopping."""
        readiness = self._readiness
        if not readiness.draining:
            return
        if readiness.drain_reason != OPERATOR_DRAINS:
            raise FlexKVError(ErrorCode.DRAINING, "the daemon is stopping, which cannot be undone: start it again")
        self._engine.post(DrainEnded(self._now_ns()))
        readiness.draining, readiness.drain_reason = False, ""
        self.on_resume()

    def change(self, rules: Rules) -> None:
        """From now on these rules hold; copies move into another order in slices. Raises FlexKVError(BAD_CONFIG)."""
        _check_rules(rules)
        self._engine.post(RulesChanged(rules, self._now_ns()))

    # ------------------------------------------------------------------ answers

    def _now_ns(self) -> int:
        return self._engine.now_ns()

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _ask(self, event: Any, number: int) -> Any:
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._engine.post(event)
            return await future
        finally:
            self._asked.pop(number, None)

    def _answered(self, number: int, answer: Any) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():  # else whoever asked was cancelled
            future.set_result(answer)

    def _advanced(self, at: OperationAdvanced) -> None:
        if at.operation in self._progress:
            self._progress[at.operation](at.done, at.total)

    def _refused(self, refused: WishRefused) -> None:
        future = self._asked.get(refused.number)
        if future is not None and not future.done():
            future.set_exception(FlexKVError(refused.code, refused.message))


def _check_rules(rules: Rules) -> None:
    for word, value, names in (
        ("policy", rules.policy, POLICIES),
        ("row_policy", rules.row_policy, ROW_POLICIES),
    ):
        if value is not None and value not in names:
            raise FlexKVError(
                ErrorCode.BAD_CONFIG, f"{word} = {value!r} is no policy: choose one of {', '.join(names)}"
            )
    for word, share in (("dram_clean_ahead", rules.dram_clean_ahead), ("ssd_clean_ahead", rules.ssd_clean_ahead)):
        if share is not None and not 0.0 <= share < 1.0:
            raise FlexKVError(ErrorCode.BAD_CONFIG, f"{word} = {share:g} is no share: choose one from 0 to below 1")
    for word, count in (
        ("ssd_hits_min", rules.ssd_hits_min),
        ("s3_hits_min", rules.s3_hits_min),
        ("ssd_bytes_per_day", rules.ssd_bytes_per_day),
        ("retry_after_ns", rules.retry_after_ns),
    ):
        if count is not None and count < 0:
            raise FlexKVError(ErrorCode.BAD_CONFIG, f"{word} = {count} is below zero: choose 0 or more")


def checked_prefix(prefix: str) -> str:
    """Hexadecimal digits in lower case. Raises FlexKVError(BAD_ARGUMENT)."""
    digits = prefix.lower()
    if len(digits) > 2 * KEY_BYTES or not set(digits) <= set("0123456789abcdef"):
        why = f"prefix = {prefix[:80]!r} is no beginning of a key: give at most {2 * KEY_BYTES} hexadecimal digits"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    return digits
