"""What was predicted, and how often it was right: a guess is followed while guesses of its kind pay.

Owns no chunks. Called by `sparse`, which says what happened to each guess.
"""

from __future__ import annotations

from collections import OrderedDict

from flexkv_py.rows.policy import Reason

PAYS_MIN = 0.94
"""Share of guesses of a kind that must be right: a wrong one costs a read and somebody's place, a right one saves a
replayed step for a read that was to come anyway."""

TRIED_MAX = 512
"""What is older weighs half."""

WATCHED_MAX = 8192
HORIZON_HALF_LIVES = 8.0
CONTROLS_EVERY = 8
"""Of guesses that are no more than likely, one in so many is only watched, so as to know what would have been."""

Spot = tuple[int, int, int]
"""Number of a request, block, chunk."""


class Kind:
    """Guesses of one reason at one distance (chunks or blocks away from what was seen).

    Of what left (no reason), being missed again is "right"; until it is known, nothing is taken for cold. Urgent
    guesses are all followed or none, or the step fails all the same; they are judged by what they brought. Of the
    others some are only watched, and these are the judges: whether a selected chunk was needed is not seen when it is
    there.
    """

    def __init__(self, reason: Reason | None, *, proven: bool = False) -> None:
        self.reason = reason
        self.urgent = reason is not None and reason.urgent
        self.tried = 8.0
        self.right = self.tried * (1.0 if reason is None else PAYS_MIN * proven)  # others must show first that they pay
        self._offered = 0

    @property
    def share(self) -> float:
        """How many of late were right."""
        return self.right / self.tried

    def learn(self, *, right: bool) -> None:
        """One guess was right or wrong."""
        self.tried += 1
        self.right += right
        if self.tried > TRIED_MAX:
            self.tried /= 2
            self.right /= 2

    def learn_from_what_came(self, *, right: bool) -> None:
        """A guess was followed, and what came was selected, or left without having been."""
        if self.urgent:
            self.learn(right=right)

    def follow(self, bar: float) -> bool:
        """Whether the next guess is to be followed; else it is watched."""
        self._offered += 1
        if self.share < bar:
            return False
        return self.urgent or self._offered % CONTROLS_EVERY != 0


class Watch:
    """Chunks not in DRAM, each until a step fails for it or the horizon has passed."""

    def __init__(self) -> None:
        self._since: OrderedDict[Spot, tuple[Kind, float]] = OrderedDict()

    def __contains__(self, spot: Spot) -> bool:
        return spot in self._since

    def begin(self, spot: Spot, kind: Kind, clock: float) -> None:
        """Watch this chunk, unless WATCHED_MAX are watched: to give up older ones would favour what is needed soon."""
        if len(self._since) < WATCHED_MAX:
            self._since[spot] = (kind, clock)

    def end(self, spot: Spot) -> Kind | None:
        """A step failed for this chunk; the kind of guess that would have been right."""
        kind, _ = self._since.pop(spot, (None, 0.0))
        return kind

    def expire(self, clock: float) -> None:
        """What was not needed within the horizon was a wrong guess."""
        since = self._since
        while since:
            spot, (kind, began) = next(iter(since.items()))
            if clock - began < HORIZON_HALF_LIVES:
                return
            del since[spot]
            kind.learn(right=False)
