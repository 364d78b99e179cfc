"""Replays a trace against the planner alone: no daemon, no bytes, one request at a time.

Each request is matched, its hit prefix loaded, the rest saved, and every copy and move between tiers
finishes at once. So the figures are those of the planner that serves in production, not of a model of
it. Called by `replay`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    ChunkLanded,
    Instruction,
    LoadAsked,
    MatchAnswered,
    MatchAsked,
    MoveKind,
    NamespaceSpec,
    SaveAsked,
    SaveHints,
    SessionOpened,
    StartCopies,
    StartMove,
    TicketFinished,
    Tier,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.planner import Planner
from flexkv_py.keys import KEY_BYTES, ROOT, BlockKey, namespace_digest

PAGE_BYTES = 4096
RECORD_BYTES = 2 * PAGE_BYTES  # a header, and a block of one page
_UNLIMITED_SEGMENTS = 1 << 12
_UNLIMITED_SEGMENT_BYTES = PAGE_BYTES << 16  # 65,536 blocks each, given out as they are needed
_SESSION = 1
_STEP_NS = 1_000_000  # between two requests; half of it is a ticket's deadline


@dataclass(frozen=True)
class Room:
    """Blocks per tier; None: no limit. A tier of 0 blocks is not there."""

    dram: int | None
    ssd: int | None = 0
    s3: int | None = 0

    @property
    def total(self) -> int | None:
        """All tiers together; None: no limit."""
        rooms = self.of_tiers
        return None if None in rooms else sum(room for room in rooms if room is not None)

    @property
    def of_tiers(self) -> tuple[int | None, int | None, int | None]:
        """From the fastest tier down."""
        return self.dram, self.ssd, self.s3


@dataclass(slots=True)
class HitCount:
    """Blocks asked for, and how many of them were in the leading run of cached blocks."""

    requests: int = 0
    blocks: int = 0
    hits: int = 0
    tiers: Counter[Tier] = field(default_factory=Counter)
    """Hits by the tier that had the block."""

    @property
    def ratio(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0


def planner_config(room: Room, **rules: object) -> PlannerConfig:
    """A planner with this room; `rules` are fields of PlannerConfig (policy, admission ...)."""
    segments, segment_bytes = _UNLIMITED_SEGMENTS, _UNLIMITED_SEGMENT_BYTES
    if room.dram is not None:
        segments, segment_bytes = 1, room.dram * PAGE_BYTES
    below = [tier for tier, blocks in ((Tier.SSD, room.ssd), (Tier.S3, room.s3)) if blocks != 0]
    return PlannerConfig(
        tiers=(Tier.DRAM, *below),
        segment_bytes=segment_bytes,
        dram_segments=segments,
        ssd_bytes=(room.ssd or 0) * RECORD_BYTES,
        s3_bytes=(room.s3 or 0) * RECORD_BYTES,
        story_events_max=1,
        **rules,  # type: ignore[arg-type]
    )


class DryRun:
    """One planner, and the count of its hits."""

    def __init__(self, config: PlannerConfig) -> None:
        self._planner = Planner(config)
        self._now_ns = 0
        self._asked = 0
        self._keys: dict[int, BlockKey] = {}
        self.count = HitCount()
        spec = NamespaceSpec(namespace_digest(b"dry", "replay", 0), (PAGE_BYTES,))
        self._planner.handle(SessionOpened(_SESSION, spec, 0, self._now_ns))

    @property
    def counters(self) -> dict[tuple[str, str], int]:
        """The planner's own totals."""
        return self._planner.counters

    def serve(self, ids: Sequence[int]) -> None:
        """One request from its match to the end of its save."""
        keys = [self._key(block) for block in ids]
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

    def _key(self, block: int) -> BlockKey:
        """Keys are hashes, and the planner takes them for such."""
        key = self._keys.get(block)
        if key is None:
            digest = hashlib.sha256(block.to_bytes(8, "little")).digest()
            key = self._keys[block] = BlockKey(digest[:KEY_BYTES])
        return key

    def _match(self, keys: Sequence[BlockKey]) -> int:
        if not keys:
            return 0
        asked = MatchAsked(_SESSION, self._asked, keys, (), 0, self._now_ns)
        answer, *started = self._planner.handle(asked)
        assert isinstance(answer, MatchAnswered), answer
        self._finish_all(started)
        for run in answer.runs:
            self.count.tiers[run.tier] += run.count
        return answer.length

    def _run(self, asked: LoadAsked | SaveAsked) -> None:
        """Finish all that starts as soon as it starts, until the ticket is over."""
        if not self._finish(asked):
            self._now_ns = asked.deadline_ns  # what still waits for room is not cached
            over = self._finish(TimePassed(self._now_ns))
            assert over, "a ticket is over when its deadline has passed"

    def _finish(self, event: LoadAsked | SaveAsked | TimePassed) -> bool:
        """Take the event and all slices of work that it leaves; whether the ticket ended."""
        over = self._finish_all(self._planner.handle(event))
        while self._planner.next_deadline_ns() == self._now_ns:
            over |= self._finish_all(self._planner.handle(TimePassed(self._now_ns)))
        return over

    def _finish_all(self, instructions: list[Instruction]) -> bool:
        """Whether the ticket ended."""
        todo = deque(instructions)
        over = False
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, StartCopies):
                results = [TransferResult(block.transfer, chunks=instruction.chunks) for block in instruction.blocks]
                todo.extend(self._planner.handle(TransfersFinished(results, self._now_ns)))
            elif isinstance(instruction, StartMove):
                todo.extend(self._finish_move(instruction))
            else:
                over |= isinstance(instruction, TicketFinished)
        return over

    def _finish_move(self, move: StartMove) -> list[Instruction]:
        out: list[Instruction] = []
        if move.kind is MoveKind.PROMOTE:
            out += self._planner.handle(ChunkLanded(move.transfer, 0, self._now_ns))
        result = TransferResult(move.transfer, location=move.transfer)
        return out + self._planner.handle(TransfersFinished([result], self._now_ns))
