"""Replays a trace against the planner alone: no daemon, no bytes, one DRAM tier, one request at a time.

Each request is matched, its hit prefix loaded, the rest saved, and every copy finishes at once. So the
figures are those of the planner that serves in production, not of a model of it. Called by `replay`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    Instruction,
    LoadAsked,
    MatchAnswered,
    MatchAsked,
    NamespaceSpec,
    SaveAsked,
    SaveHints,
    SessionOpened,
    StartCopies,
    TicketFinished,
    Tier,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.planner import Planner
from flexkv_py.keys import KEY_BYTES, ROOT, BlockKey, namespace_digest

_PAGE_BYTES = 4096
_UNLIMITED_SEGMENTS = 1 << 12
_UNLIMITED_SEGMENT_BYTES = _PAGE_BYTES << 16  # 65,536 blocks each, given out as they are needed
_SESSION = 1
_STEP_NS = 1_000_000  # between two requests; half of it is a ticket's deadline


@dataclass(slots=True)
class HitCount:
    """Blocks asked for, and how many of them were in the leading run of cached blocks."""

    requests: int = 0
    blocks: int = 0
    hits: int = 0

    @property
    def ratio(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0


class DryRun:
    """One planner with room for `dram_blocks` blocks (None: no limit), and the count of its hits."""

    def __init__(self, dram_blocks: int | None, policy: str) -> None:
        segments, segment_bytes = _UNLIMITED_SEGMENTS, _UNLIMITED_SEGMENT_BYTES
        if dram_blocks is not None:
            segments, segment_bytes = 1, dram_blocks * _PAGE_BYTES
        self._planner = Planner(
            PlannerConfig(
                segment_bytes=segment_bytes,
                dram_segments=segments,
                policy=policy,
                story_events_max=1,
            )
        )
        self._now_ns = 0
        self._asked = 0
        self.count = HitCount()
        spec = NamespaceSpec(namespace_digest(b"dry", "replay", 0), (_PAGE_BYTES,))
        self._planner.handle(SessionOpened(_SESSION, spec, 0, self._now_ns))

    def serve(self, ids: Sequence[int]) -> None:
        """One request from its match to the end of its save."""
        keys = [BlockKey(block.to_bytes(KEY_BYTES, "big")) for block in ids]
        self._now_ns += _STEP_NS
        self._asked += 1
        hits = self._match(keys)
        self.count.requests += 1
        self.count.blocks += len(keys)
        self.count.hits += hits
        deadline_ns = self._now_ns + _STEP_NS // 2
        if hits:
            self._run(LoadAsked(_SESSION, 2 * self._asked, keys[:hits], deadline_ns, self._now_ns))
        # The whole chain is saved, what was hit is `present`: so the request ends touched tail first.
        hints = SaveHints()
        self._run(SaveAsked(_SESSION, 2 * self._asked + 1, keys, ROOT, deadline_ns, Tier.DRAM, hints, self._now_ns))

    def _match(self, keys: Sequence[BlockKey]) -> int:
        if not keys:
            return 0
        asked = MatchAsked(_SESSION, self._asked, keys, (), 0, self._now_ns)
        [answer] = self._planner.handle(asked)
        assert isinstance(answer, MatchAnswered), answer
        return answer.length

    def _run(self, asked: LoadAsked | SaveAsked) -> None:
        """Finish every copy of a ticket as soon as it starts, until the ticket is over."""
        if not self._finish_copies(self._planner.handle(asked)):
            self._now_ns = asked.deadline_ns  # what still waits for room is not cached
            over = self._finish_copies(self._planner.handle(TimePassed(self._now_ns)))
            assert over, "a ticket is over when its deadline has passed"

    def _finish_copies(self, instructions: list[Instruction]) -> bool:
        """Whether the ticket ended."""
        todo = deque(instructions)
        over = False
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, StartCopies):
                todo.extend(self._planner.handle(self._finished(instruction)))
            else:
                over |= isinstance(instruction, TicketFinished)
        return over

    def _finished(self, copies: StartCopies) -> TransfersFinished:
        results = [TransferResult(block.transfer, chunks=copies.chunks) for block in copies.blocks]
        return TransfersFinished(results, self._now_ns)
