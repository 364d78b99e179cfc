"""A planner whose whole state is recounted when the test ends, and short ways to speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from flexkv_py.core.blocks import Index
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    ChunkLanded,
    Fault,
    Instruction,
    LoadAsked,
    MatchAnswered,
    MatchAsked,
    MoveKind,
    NamespaceSpec,
    Outcome,
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
from flexkv_py.core.state import State
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest, key_of_hash
from flexkv_py.rows.grants import chunks_in
from tests import invariants

NAMESPACE = NamespaceDigest(bytes(range(32)))
CHUNKS = (8192, 4096)
SPEC = NamespaceSpec(NAMESPACE, CHUNKS)
SEGMENT_BYTES = 2 * 8192


def chain(count: int, branch: str = "") -> list[BlockKey]:
    """Keys of a chain of `count` blocks; branches share nothing."""
    keys: list[BlockKey] = []
    parent = ROOT
    for at in range(count):
        parent = key_of_hash(NAMESPACE, parent, f"{branch}{at}".encode())
        keys.append(parent)
    return keys


@dataclass
class Bench:
    """A planner, a clock, and what it last told us."""

    planner: Planner
    now_ns: int = 0
    tickets: int = 0
    running: dict[int, list[StartMove | StartCopies]] = field(default_factory=dict)
    told: list[Instruction] = field(default_factory=list)

    def post(self, event: Any) -> list[Instruction]:
        out = self.planner.handle(event)
        for instruction in out:
            if isinstance(instruction, StartMove):
                self.running[instruction.transfer] = [instruction]
            elif isinstance(instruction, StartCopies):
                for copy in instruction.blocks:
                    self.running.setdefault(copy.transfer, []).append(instruction)
            else:
                self.told.append(instruction)
        return out

    def save(self, keys: list[BlockKey], parent: BlockKey = ROOT, ack: Tier = Tier.DRAM, deadline_ns: int = 0,
             hints: SaveHints | None = None, session: int = 1) -> int:  # fmt: skip
        self.tickets += 1
        hints = hints or SaveHints()
        self.post(SaveAsked(session, self.tickets, keys, parent, deadline_ns, ack, hints, self.now_ns))
        self.look_at_all()
        return self.tickets

    def load(self, keys: list[BlockKey], deadline_ns: int = 0, session: int = 1) -> int:
        self.tickets += 1
        self.post(LoadAsked(session, self.tickets, keys, deadline_ns, self.now_ns))
        self.look_at_all()
        return self.tickets

    def match(self, keys: list[BlockKey], hold_ns: int = 0, shards: tuple[int, ...] = ()) -> MatchAnswered:
        self.post(MatchAsked(1, 99, keys, shards, hold_ns, self.now_ns))
        answer = self.told.pop()
        assert isinstance(answer, MatchAnswered)
        return answer

    def moves(self, kind: MoveKind) -> list[StartMove]:
        return [move for [move, *_] in self.running.values() if isinstance(move, StartMove) and move.kind is kind]

    def finish(self, transfer: int, fault: Fault | None = None, location: int = 0) -> None:
        """End one running transfer; a promotion first lands its chunks."""
        self.post(TransfersFinished(self._end(transfer, self.running.pop(transfer), fault, location), self.now_ns))

    def settle(self) -> None:
        """End everything that runs, without faults, until nothing runs."""
        while self.running:
            self.settle_once()

    def settle_copies(self) -> None:
        """End the copies with workers that run now, without faults; moves between tiers go on."""
        copies = [at for at, [first, *_] in self.running.items() if isinstance(first, StartCopies)]
        results = [one for transfer in copies for one in self._end(transfer, self.running.pop(transfer))]
        self.post(TransfersFinished(results, self.now_ns))

    def look_at_all(self) -> None:
        """Have requests of more keys than one event looks at go through all their slices."""
        while self.planner.state.arrivals:
            self.tick()

    def tick(self) -> None:
        self.post(TimePassed(self.now_ns))

    def settle_once(self) -> None:
        """End what runs now, without faults; what that starts goes on."""
        batch, self.running = self.running, {}
        results = [one for transfer, running in batch.items() for one in self._end(transfer, running)]
        self.post(TransfersFinished(results, self.now_ns))

    def _end(
        self, transfer: int, running: list[StartMove | StartCopies], fault: Fault | None = None, location: int = 0
    ) -> list[TransferResult]:
        results = []
        for instruction in running:
            chunks = 0
            if isinstance(instruction, StartCopies):
                chunks = 0 if fault else instruction.chunks
            elif instruction.kind is MoveKind.PROMOTE and fault is None:
                for chunk in chunks_in(instruction.chunks):
                    self.post(ChunkLanded(transfer, chunk, self.now_ns))
            results.append(TransferResult(transfer, fault, location or transfer, chunks))
        return results

    def outcomes(self, ticket: int) -> list[Outcome]:
        [finished] = [told for told in self.told if isinstance(told, TicketFinished) and told.ticket == ticket]
        return finished.outcomes

    def copy(self, key: BlockKey, tier: Tier) -> Any:
        block = self.planner.state.index(NAMESPACE, 0).blocks.get(key)
        return None if block is None else block.copy_in(tier)


def make_index() -> Index:
    """An index that belongs to a tenant of its own, with no planner around it."""
    return State(PlannerConfig(tiers=(Tier.DRAM, Tier.SSD))).index(NAMESPACE, 0)


def make_bench(**config: Any) -> Bench:
    config = {"segment_bytes": SEGMENT_BYTES, "dram_segments": 8} | config
    bench = Bench(Planner(PlannerConfig(**config)))
    bench.post(SessionOpened(1, SPEC, 0, 0))
    return bench


@pytest.fixture
def benches() -> Iterator[Any]:
    """A maker of benches; every planner made is recounted at the end."""
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(make_bench(**config))
        return made[-1]

    yield make
    for bench in made:
        invariants.check(bench.planner)
