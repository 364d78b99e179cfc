"""A planner with the operator's extension, whose whole state is recounted when the test ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import SessionOpened, Tier
from flexkv_py.core.planner import Planner
from flexkv_py.core.policies import Policy
from flexkv_py.core.state import State
from flexkv_py.keys import BlockKey
from flexkv_py.operating.extension import Operating
from flexkv_py.operating.messages import (
    Choice,
    OperationAsked,
    OperationEnded,
    OperationKind,
    PinAnswered,
    PinAsked,
    RulesChanged,
    UnpinAnswered,
    UnpinAsked,
    WishRefused,
)
from tests import invariants
from tests.core.conftest import SEGMENT_BYTES, SPEC, Bench

SECOND = 1_000_000_000


@dataclass
class OperatorBench(Bench):
    """A bench with an operator at it."""

    numbers: int = 0
    operating: list[Operating] = field(default_factory=list)

    @property
    def state(self) -> State:
        return self.planner.state

    @property
    def order(self) -> Policy:
        """Of the one tenant's copies in DRAM."""
        [shelf] = self.state.dram.shelves
        return shelf.policy

    def ask(self, event: Any, answer: type) -> Any:
        """The one answer to a request; a refusal is one too."""
        self.told.clear()
        self.post(event)
        [told] = [each for each in self.told if isinstance(each, (answer, WishRefused))]
        return told

    def pin(self, keys: Sequence[BlockKey], ttl_ns: int = SECOND) -> Any:
        self.numbers += 1
        return self.ask(PinAsked(self.numbers, list(keys), ttl_ns, self.now_ns), PinAnswered)

    def unpin(self, keys: Sequence[BlockKey]) -> Any:
        self.numbers += 1
        return self.ask(UnpinAsked(self.numbers, list(keys), self.now_ns), UnpinAnswered)

    def operate(
        self,
        kind: OperationKind,
        tier: Tier,
        choice: Choice | None = None,
        deadline_ns: int = 100 * SECOND,
        *,
        settle: bool = True,
    ) -> Any:
        """Begin an operation, and (unless told not to) let all it starts end. Returns its end, or its refusal."""
        self.numbers += 1
        self.told.clear()
        self.post(OperationAsked(self.numbers, kind, choice or Choice(), tier, self.now_ns + deadline_ns, self.now_ns))
        if settle:
            self.quiet()
        return self.end_of(self.numbers)

    def end_of(self, number: int) -> Any:
        """The end of an operation, or its refusal; None while it runs."""
        ends: list[Any] = [
            each
            for each in self.told
            if (isinstance(each, OperationEnded) and each.operation == number)
            or (isinstance(each, WishRefused) and each.number == number)
        ]
        assert len(ends) < 2
        return ends[0] if ends else None

    def change(self, rules: Any) -> None:
        self.post(RulesChanged(rules, self.now_ns))

    def slices(self) -> None:
        """Let go on by itself what needs no end of a transfer."""
        while (due_ns := self.planner.next_deadline_ns()) is not None and due_ns <= self.now_ns:
            self.tick()

    def quiet(self) -> None:
        """Let everything run to its end, slices and transfers."""
        self.slices()
        while self.running:
            self.settle_once()
            self.slices()


@pytest.fixture
def benches() -> Iterator[Any]:
    """A maker of benches; every planner made is recounted at the end."""
    made: list[OperatorBench] = []

    def make(**config: Any) -> OperatorBench:
        operating: list[Operating] = []

        def extend(state: State) -> Any:
            operating.append(Operating(state))
            return operating[0].handlers()

        config = {"segment_bytes": SEGMENT_BYTES, "dram_segments": 8} | config
        bench = OperatorBench(Planner(PlannerConfig(**config), [extend]), operating=operating)
        bench.post(SessionOpened(1, SPEC, 0, 0))
        made.append(bench)
        return bench

    yield make
    for bench in made:
        invariants.check(bench.planner)
