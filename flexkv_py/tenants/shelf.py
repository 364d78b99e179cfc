"""One tenant's part of one tier: what it uses there, and the order in which it gives room.

READY, unpinned copies stand in exactly one of its lists. `reclaimable` has those that may go at once (also below,
or refused there), oldest first; then come copies of low priority, the tier's policy, and those of high priority.
A shelf and a whole tier are both rooms: `room` makes space in either by the same steps. Called by the planner's flows.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.core.blocks import Copy, CopyList, Rank
from flexkv_py.core.policies import Policy
from flexkv_py.tenants.owner import Owner
from flexkv_py.tenants.ranking import Ranking
from flexkv_py.words import Tier


class Shelf:
    """See the module's docstring."""

    __slots__ = (
        "_ranking",
        "_tended",
        "capacity_bytes",
        "dropping_bytes",
        "high",
        "owner",
        "policy",
        "ranked",
        "ranked_at",
        "reclaimable",
        "tier",
        "used_bytes",
        "watched",
        "weight",
    )

    def __init__(
        self, owner: Tenant, tier: Tier, policy: Policy, ranking: Ranking[Shelf], tended: dict[Shelf, None]
    ) -> None:
        self.owner = owner
        self.tier = tier
        self.policy = policy
        self.high = CopyList()  # of high priority, by last use
        self.reclaimable = CopyList(spare=True)
        self.used_bytes = 0  # frames or records, also those being filled, written or dropped
        self.dropping_bytes = 0
        self.capacity_bytes = owner.quota.bytes_in(tier)  # its quota; 0 = none
        self.weight = owner.quota.weight
        self.watched = self.capacity_bytes > 0  # somebody must hear that it has `grown`
        self.ranked = False  # whether it stands in the ranking: always, where it has a copy in any list
        self.ranked_at = 0.0  # where
        self._ranking = ranking
        self._tended = tended  # shelves with a quota that were filled further
        ranking.join(self)

    @property
    def fullness(self) -> float:
        """Bytes per weight: who has most of that is most above its share, however large the tier is."""
        return self.used_bytes / self.weight

    @property
    def lists(self) -> Sequence[CopyList]:
        """Where its copies stand."""
        return self.reclaimable, *self.policy.lists, self.high

    @property
    def count(self) -> int:
        """Copies that stand in any list."""
        return self.reclaimable.count + self.policy.count + self.high.count

    def grown(self) -> None:
        """More of the tier is used than before, or its quota has changed."""
        if self.capacity_bytes:
            self._tended[self] = None
        if self.ranked:
            self._ranking.grown(self)

    def allow(self, quota_bytes: int, weight: float) -> None:
        """A new quota (0 = none). What is above it goes as soon as it may, and nothing is added meanwhile."""
        self.capacity_bytes, self.weight = quota_bytes, weight
        self.watched = self.watched or quota_bytes > 0
        self.grown()

    def lacks(self, more_bytes: int) -> bool:
        """Whether the quota has no room for this much more."""
        return 0 < self.capacity_bytes < self.used_bytes + more_bytes

    def hopeless(self, more_bytes: int) -> str:
        """Why the quota never has room for so much; empty when it may."""
        if not 0 < self.capacity_bytes < more_bytes:
            return ""
        quota = f"{self.capacity_bytes} bytes of {self.tier.name.lower()}"
        return f"one block takes {more_bytes} bytes, and the quota of {self.owner.called} is {quota}: raise it"

    def add(self, copy: Copy) -> None:
        """A copy became READY, was used, or its last reader left."""
        if not self.ranked:
            self._ranking.enter(self)
        block = copy.block
        if not block.index.rules or (rank := block.rule.rank) is Rank.NORMAL:
            self.policy.add(copy)
        else:
            (self.high if rank is Rank.HIGH else self.policy.cold).push_newest(copy)

    def cool(self, copy: Copy) -> None:
        """A copy that nobody asked for, or an orphan: the first victim of those that are not reclaimable."""
        if not self.ranked:
            self._ranking.enter(self)
        self.policy.cool(copy)

    def spare(self, copy: Copy, *, first: bool = False) -> None:
        """A copy that may go at once; it goes before what stands there already if `first`."""
        if not self.ranked:
            self._ranking.enter(self)
        (self.reclaimable.push_oldest if first else self.reclaimable.push_newest)(copy)

    def coldest(self) -> Copy | None:
        """The next victim; it stays where it stands until removed."""
        return self.reclaimable.oldest or self.unclean()

    def unclean(self) -> Copy | None:
        """The next victim of those that were not made ready to go."""
        return self.policy.coldest() or self.high.oldest


Tenant = Owner[Shelf]
"""Who has shelves."""
