"""One request's step until it counts: absent rows, what is waited for, replays, and giving up.

A step whose `ok` flag was cleared met rows that are not in DRAM. Its sample is discarded, its absent pages are
asked for, and it runs again once they are in. Asking pins: the daemon keeps what was asked for until
the step succeeds, so every replay gets at least one layer group further, and `replays_max` bounds what
pins cannot promise (a daemon that restarted, a disk that lost a block). Pure; `worker` drives one
machine per request, and what ranks of one instance must agree on is decided here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

Part = tuple[int, int]
"""(block, chunk): what the daemon grants and revokes."""

REPLAYS_MAX = 64
"""Replays of one step: one per layer group of the deepest models, with as many again for pages that left."""


class Verdict(Enum):
    """What becomes of a step that has run."""

    DONE = "done"
    REPLAY = "replay"
    GIVE_UP = "give_up"


class StepState(Enum):
    """Whether a request's next step may run."""

    READY = "ready"
    WAITING = "waiting"
    GIVEN_UP = "given_up"


class Replays:
    """The step a request is at. `judge` after each run; `granted`, `revoked` and `refused` between."""

    def __init__(self, replays_max: int = REPLAYS_MAX) -> None:
        self.replay_count = 0
        """Replays of the present step so far, the one that is due included."""
        self.state = StepState.READY
        self._replays_max = replays_max
        self._asked: dict[Part, bool] = {}
        """What this step has met as absent, in the order met; True while it is in. Empty between steps."""
        self._unsent: list[Part] = []

    def judge(self, ok: bool, absents: Sequence[Part]) -> Verdict:
        """Judge a run of the step: `ok` as agreed by all ranks, `absents` what this rank met.

        A rank may be not ok without absents of its own: another rank met them, and this one replays too.
        """
        assert self.state is StepState.READY
        assert not (ok and absents)
        if ok:
            self._asked.clear()
            self._unsent.clear()
            self.replay_count = 0
            return Verdict.DONE
        if self.replay_count == self._replays_max:
            self.give_up()
            return Verdict.GIVE_UP
        self.replay_count += 1
        for part in absents:
            self._want(part)
        self._settle()
        return Verdict.REPLAY

    def granted(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part in self._asked:
                self._asked[part] = True
        self._settle()

    def revoked(self, parts: Iterable[Part]) -> None:
        """What left again is asked for again, before the replay can meet its absence."""
        for part in parts:
            if self._asked.get(part):
                self._want(part)
        self._settle()

    def refused(self) -> bool:
        """What was asked for will not come. True when the step rests on it, and is given up; else it came too late."""
        if self.state is StepState.GIVEN_UP or not self.replay_count:
            return False
        self.give_up()
        return True

    def ask_again(self) -> None:
        """Nothing that was asked for is in, or on its way: the daemon is another one."""
        for part in self._asked:
            self._want(part)
        self._settle()

    def give_up(self) -> None:
        """The step cannot run as things are: its rows are made resident, or the request is handed back."""
        self._asked.clear()
        self._unsent.clear()
        self.state = StepState.GIVEN_UP

    def made_resident(self) -> None:
        """Every row is in HBM pages now: the step runs again, and can meet no absent row."""
        self._asked.clear()
        self._unsent.clear()
        self.replay_count = 0
        self.state = StepState.READY

    def take_asks(self) -> list[Part]:
        """What to ask the daemon for, each part once per absence, in the order met."""
        asks, self._unsent = self._unsent, []
        return asks

    def _want(self, part: Part) -> None:
        self._asked[part] = False
        if part not in self._unsent:
            self._unsent.append(part)

    def _settle(self) -> None:
        if self.state is not StepState.GIVEN_UP:
            self.state = StepState.READY if all(self._asked.values()) else StepState.WAITING


def agree_oks(oks_by_rank: Sequence[Sequence[bool]]) -> list[bool]:
    """`ok` per request of the batch, over the ranks that decode together: one rank's absence is everyone's replay."""
    assert len({len(oks) for oks in oks_by_rank}) == 1
    return [all(oks) for oks in zip(*oks_by_rank, strict=True)]


def agree_versions(received_by_rank: Sequence[Sequence[int]]) -> list[int]:
    """Page-table version per request to switch to before the next step: the newest that every rank has received."""
    assert len({len(versions) for versions in received_by_rank}) == 1
    return [min(versions) for versions in zip(*received_by_rank, strict=True)]
