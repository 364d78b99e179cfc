"""Who may read which chunk of a running request, and since when nobody does: versions, acknowledgements, ranks.

A *grant* lets every rank of a request read one chunk of the block at one position; it makes the request a reader of
the copy. Revoking it takes effect when every rank has acknowledged a version that says so, is detached, or is gone
together with its process. Until then the request *holds* the chunk, and its frame must not be used for anything else.

Owns no copies and no frames, and decides nothing: the planner says what is granted and revoked, pins what a request
begins to hold and unpins what it is told is held no more. Used by `flexkv_py.core` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from flexkv_py.keys import BlockKey
from flexkv_py.rows.messages import ChangePages, PageGrant, PageRevoke
from flexkv_py.rows.policy import RequestId

GRANTS_PER_MESSAGE_MAX = 32_768
"""Of 12 bytes each on the socket; the rest goes with the next version."""


NO_TURN = 1 << 62
"""Behind everybody."""


class Readable(Protocol):
    """A copy of a block, as far as a grant is concerned."""

    @property
    def frames(self) -> tuple[int, ...]:
        """Frame numbers by chunk."""
        ...


CopyT = TypeVar("CopyT", bound=Readable)
IndexT = TypeVar("IndexT")
"""Whose blocks they are: the planner's own."""
Spot = tuple[int, int]
"""A position in the request, and a chunk of the block there."""


@dataclass(slots=True, eq=False)
class Rank:
    """One session that decodes the request."""

    session: int
    acknowledged: int
    """No step of it can see a table older than this version."""
    told: int
    """The last version it was sent."""
    attached: int = 0
    """It has attached the blocks at positions below this."""
    listed: int = 0
    """It was told what may be read at positions below this; the others are listed whole when their turn comes."""
    owes: deque[tuple[int, int]] = field(default_factory=deque)
    """Versions with revocations that it has not acknowledged, and when each was told (ns)."""
    replays: int = 0
    """Steps in a row that failed for absent rows."""
    wanted: dict[int, int] = field(default_factory=dict)
    """By position: chunks (mask) that its failed step has pinned, granted already or not."""
    wanted_until_ns: int = 0
    """When what did not come of them is refused."""
    closed: bool = False
    """Its socket is gone, but not its process: it may read whatever it was granted last."""


class Request(Generic[CopyT, IndexT]):
    """One running request of an instance: its blocks by position, its ranks, and what they may read.

    Chunks of a position are masks: `granted` is what the newest version says, `leaving` what was revoked and is not
    acknowledged by all. A chunk may be both: it was granted again meanwhile, in the frame it never left.
    """

    def __init__(self, number: RequestId, index: IndexT, owner: str | int, called: int) -> None:
        self.id = number
        self.index = index
        self.owner = owner  # the instance, or the session that is alone
        self.called = called  # its number for the owner
        self.keys: list[BlockKey] = []
        self.positions: dict[BlockKey, int] = {}
        self.copies: list[CopyT | None] = []  # what is read at each position, while anything there is held
        self.granted: list[int] = []
        self.leaving: list[int] = []
        self.ranks: dict[int, Rank] = {}
        self.version = 0
        self.turn = NO_TURN  # in which order steps began to fail; pins of later ones yield to those of earlier ones
        self.open = 0  # of a closed namespace: positions from here on are revoked
        self._fresh: dict[Spot, None] = {}  # granted since the last version
        self._revoked: dict[Spot, None] = {}  # revoked since the last version
        self._newest: dict[Spot, int] = {}  # the newest version that revoked a spot, until all have acknowledged that
        self._told: deque[tuple[int, Spot]] = deque()  # revocations in order of versions

    @property
    def live(self) -> bool:
        """Whether any rank still decodes it."""
        return any(not rank.closed for rank in self.ranks.values())

    @property
    def behind(self) -> bool:
        """Whether revocations that every rank has acknowledged are still to take effect: `settle`."""
        return bool(self._told) and self._told[0][0] <= min(rank.acknowledged for rank in self.ranks.values())

    def held(self, position: int) -> int:
        """Chunks (mask) that some rank may be reading."""
        return self.granted[position] | self.leaving[position]

    def pinned(self, position: int) -> int:
        """Chunks (mask) that failed steps need, granted already or not."""
        pinned = 0
        for rank in self.ranks.values():
            pinned |= rank.wanted.get(position, 0)
        return pinned

    def missing(self, position: int) -> int:
        """Chunks (mask) that failed steps wait for."""
        return self.pinned(position) & ~self.granted[position]

    # ------------------------------------------------------------------ ranks

    def join(self, session: int) -> Rank:
        """A rank that may read nothing yet, and has nothing of older versions to acknowledge."""
        assert session not in self.ranks
        rank = self.ranks[session] = Rank(session, self.version, self.version)
        return rank

    def attach(self, rank: Rank, first: int, keys: Sequence[BlockKey]) -> range:
        """The rank has these blocks from position `first` on; returns the positions that are new to the request.

        The planner has checked that no hole is left, and that what is attached already are the same keys.
        """
        assert first <= rank.attached
        start = len(self.keys)
        for position, key in enumerate(keys[start - first :], start):
            assert key not in self.positions
            self.positions[key] = position
            self.keys.append(key)
            self.copies.append(None)
            self.granted.append(0)
            self.leaving.append(0)
        rank.attached = max(rank.attached, first + len(keys))
        return range(start, len(self.keys))

    def acknowledge(self, rank: Rank, version: int) -> None:
        """The rank has reached a version, the ones before it included; it takes effect as they `settle`."""
        assert version <= rank.told
        rank.acknowledged = max(rank.acknowledged, version)
        while rank.owes and rank.owes[0][0] <= version:
            rank.owes.popleft()

    def close(self, rank: Rank) -> None:
        """The rank hears nothing more and acknowledges nothing more; it holds what it was granted."""
        rank.closed, rank.listed = True, rank.attached
        rank.owes.clear()
        rank.wanted.clear()

    def leave(self, rank: Rank) -> None:
        """The rank reads nothing any more. When no rank is left, a copy is held until its block is dropped."""
        del self.ranks[rank.session]
        if not self.ranks:
            self.granted, self.leaving, self.open = [0] * len(self.keys), [-1] * len(self.keys), 0

    def drop_last(self) -> tuple[BlockKey, CopyT | None]:
        """Of a request without ranks, its last block and the copy that it read."""
        assert not self.ranks
        return self.keys.pop(), self.copies.pop()

    # ----------------------------------------------------------------- grants

    def grant(self, position: int, copy: CopyT, chunks: int) -> bool:
        """Let the ranks read these chunks (mask); True when that makes the request a reader of the copy."""
        begins = self.copies[position] is None
        assert begins or self.copies[position] is copy
        assert chunks & self.granted[position] == 0
        self.copies[position] = copy
        self.granted[position] |= chunks
        if any(position < rank.listed for rank in self.ranks.values()):  # else it will be listed whole
            for chunk in chunks_in(chunks):
                self._fresh[position, chunk] = None
        return begins

    def revoke(self, position: int, chunks: int) -> None:
        """Let the ranks read these chunks (mask) no more, once they have acknowledged it."""
        assert chunks & ~self.granted[position] == 0
        self.granted[position] &= ~chunks
        self.leaving[position] |= chunks
        for chunk in chunks_in(chunks):
            self._fresh.pop((position, chunk), None)
            self._revoked[position, chunk] = None

    def settle(self) -> CopyT | None:
        """The oldest revocation that the last rank has acknowledged takes effect, unless a newer one is to.

        Returns the copy if it is held no more.
        """
        version, spot = self._told.popleft()
        if self._newest[spot] != version:
            return None
        del self._newest[spot]
        if spot in self._revoked:  # once more, and that was not told yet
            return None
        position, chunk = spot
        self.leaving[position] &= ~(1 << chunk)
        copy = self.copies[position]
        assert copy is not None
        if self.held(position):
            return None
        self.copies[position] = None
        return copy

    # --------------------------------------------------------------- versions

    def tell(self, now_ns: int) -> Iterator[ChangePages]:
        """What has changed, in as many versions as it takes; each goes to every rank that is not closed.

        Ranks that were told of a position know the same of it at the same version.
        """
        while self._fresh or self._revoked or any(rank.listed < rank.attached for rank in self.ranks.values()):
            fresh = list(self._fresh)[:GRANTS_PER_MESSAGE_MAX]
            for spot in fresh:
                del self._fresh[spot]
            revoked, self._revoked = self._revoked, {}
            self.version += 1
            for spot in revoked:
                self._newest[spot] = self.version
                self._told.append((self.version, spot))
            for rank in self.ranks.values():
                if not rank.closed:
                    yield self._change(rank, fresh, list(revoked), now_ns)

    def _change(self, rank: Rank, fresh: list[Spot], revoked: list[Spot], now_ns: int) -> ChangePages:
        rank.told = self.version
        if revoked:
            rank.owes.append((self.version, now_ns))
        knows = rank.listed
        granted = [self._page(position, chunk) for position, chunk in fresh if position < knows]
        while rank.listed < rank.attached and len(granted) < GRANTS_PER_MESSAGE_MAX:
            granted += [self._page(rank.listed, chunk) for chunk in chunks_in(self.granted[rank.listed])]
            rank.listed += 1
        pages = [PageRevoke(position, chunk) for position, chunk in revoked if position < knows]
        return ChangePages(rank.session, self.called, self.version, granted, pages)

    def _page(self, position: int, chunk: int) -> PageGrant:
        copy = self.copies[position]
        assert copy is not None
        return PageGrant(position, chunk, copy.frames[chunk])


def chunks_in(mask: int) -> Iterator[int]:
    """The numbers of the chunks in a mask, from the first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
