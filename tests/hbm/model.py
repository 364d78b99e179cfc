"""The step of the row path as lists and loops: what the oracle is held against.

Written from the contract (field notes of HiSparse and docs/row-path.md), not from the oracle: no tensor, one
id at a time. It knows no bytes: whether a slot holds the right row is `world`'s to check.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelRequest:
    """One request in one group. `held[s]` is the id in slot s, `order` slots from oldest to newest.

    It has as many slots as `held` has entries. `newest_there`: its newest slots lie in HBM pages.
    """

    held: list[int | None]
    order: list[int]
    length: int = 0
    newest_first: int = 1 << 31
    ok: bool = True
    written: tuple[int, int] | None = None  # ids the last step wrote to their own slots: first, end
    planned: int = -1
    heat: dict[int, int] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    absents: int = 0
    refused: int = 0
    absent_ids: list[int] = field(default_factory=list)
    newest_there: bool = True


@dataclass
class Answer:
    """What one step says of one request. Slots count within the request; None is padding."""

    slots: list[list[int | None]]
    loads: list[tuple[int, int]]  # (id, slot) in order of loading
    newest: list[int | None]


class Model:
    """One group of some requests. `pages[request][block]` is a frame number or None."""

    def __init__(
        self, newest_at: int, newest: int, queries: int, ids_per_block: int, per_id: int, partial: bool
    ) -> None:
        self.newest_at, self.newest, self.queries = newest_at, newest, queries
        self.ids_per_block, self.per_id, self.partial = ids_per_block, per_id, partial
        self.requests: dict[int, ModelRequest] = {}
        self.pages: dict[int, list[int | None]] = {}

    def open(self, request: int, length: int, count: int) -> None:
        self.requests[request] = ModelRequest([None] * count, list(range(count)), length)

    def resize(self, request: int, count: int, stay: set[int]) -> None:
        """The request has `count` slots from now on: the last ones go, or new ones come in as the oldest.

        Slots in `stay` keep what they hold.
        """
        state = self.requests[request]
        before = len(state.held)
        visible = self.visible(state.length + self.queries)
        if (visible <= before) != (visible <= count):
            state.held = [None] * before
        held = state.held + [None] * (count - before)
        state.held = [held[slot] if slot in stay else None for slot in range(count)]
        state.order = list(range(before, count)) + [slot for slot in state.order if slot < count]
        state.written = None

    def visible(self, tokens: int) -> int:
        """How many ids may be selected once `tokens` tokens are there."""
        whole, rest = divmod(tokens, self.per_id)
        return whole + (1 if rest and self.partial else 0)

    def step(self, request: int, selection: list[list[int]]) -> Answer:
        """`selection[q]` are the ids query q selected, -1 for padding."""
        state = self.requests[request]
        nothing = Answer([[None] * len(row) for row in selection], [], [None] * self.queries)
        if not state.ok:
            return nothing
        self._keep_written(state)
        visible = self.visible(state.length + self.queries)
        first = min(state.length, state.newest_first) // self.per_id
        fits = visible <= len(state.held)
        chosen = [each for row in selection for each in row]
        distinct = list(dict.fromkeys(each for each in chosen if 0 <= each < first))
        wrong = [each for each in chosen if each < -1 or each >= visible]
        if not fits:
            wrong += [each for each in chosen if first <= each < visible and not state.newest_there]
            wrong += ["too many rows are in no saved page"] * (visible - first > self.newest)
            wrong += ["more rows than slots"] * (len(distinct) > len(state.held))
        state.refused += len(wrong)
        missing = [each for each in distinct if not self._resident(state, each, fits)]
        state.absent_ids = [each for each in missing if self.pages[request][each // self.ids_per_block] is None]
        state.absents += len(state.absent_ids)
        if state.absent_ids or wrong:
            state.ok = False
            return nothing
        loads = [(each, each) for each in missing] if fits else self._evict(state, distinct, missing)
        for each, slot in loads:
            state.held[slot] = each
        self._count(state, distinct, missing)

        def place(each: int) -> int | None:
            if each == -1:
                return None
            if fits:
                return each
            return self.newest_at + each % self.newest if each >= first else state.held.index(each)

        state.written = (first, visible) if fits else None
        state.planned = state.length
        own = [(state.length + query) // self.per_id for query in range(self.queries)]
        return Answer(
            [[place(each) for each in row] for row in selection],
            loads,
            [place(each) if each < visible else None for each in own],
        )

    def commit(self, request: int, accepted: int) -> None:
        state = self.requests[request]
        if state.ok:
            state.length += accepted

    def _keep_written(self, state: ModelRequest) -> None:
        """What the last step wrote into own slots is there, as far as verification kept it."""
        if state.written is not None:
            for each in range(state.planned // self.per_id, state.length // self.per_id):
                state.held[each] = each

    def _resident(self, state: ModelRequest, each: int, fits: bool) -> bool:
        return state.held[each] == each if fits else each in state.held

    def _evict(self, state: ModelRequest, distinct: list[int], missing: list[int]) -> list[tuple[int, int]]:
        """Walk the slots from the oldest: used ones go to the new end, unused ones are given to misses first."""
        stale, given, used, waiting = [], [], [], list(missing)
        for slot in state.order:
            if state.held[slot] is not None and state.held[slot] in distinct:
                used.append(slot)
            elif waiting:
                given.append((waiting.pop(0), slot))
            else:
                stale.append(slot)
        state.order = stale + [slot for _, slot in given] + used
        return given

    def _count(self, state: ModelRequest, distinct: list[int], missing: list[int]) -> None:
        state.hits += len(distinct) - len(missing)
        state.misses += len(missing)
        for each in distinct:
            block = each // self.ids_per_block
            state.heat[block] = state.heat.get(block, 0) + 1
