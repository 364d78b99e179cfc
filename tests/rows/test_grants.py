"""One request's grants by themselves: versions, ranks, and when a revocation takes effect."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest, key_of_hash
from flexkv_py.rows import grants
from flexkv_py.rows.grants import Rank, Request, chunks_in
from flexkv_py.rows.messages import ChangePages, PageGrant, PageRevoke
from flexkv_py.rows.policy import RequestId

NAMESPACE = NamespaceDigest(bytes(32))


@dataclass(frozen=True)
class Frames:
    """A copy, as far as grants need one."""

    frames: tuple[int, ...]


KEYS: list[BlockKey] = [key_of_hash(NAMESPACE, ROOT, bytes([at])) for at in range(8)]
COPIES = [Frames((10 * at, 10 * at + 1)) for at in range(8)]


def make(count: int = 2) -> tuple[Request[Frames, None], Rank]:
    """A request of `count` blocks with one rank, everything granted and told as version 1."""
    request: Request[Frames, None] = Request(RequestId(1), None, "instance", 7)
    rank = request.join(1)
    request.attach(rank, 0, KEYS[:count])
    for position in range(count):
        assert request.grant(position, COPIES[position], 0b11)
    tell(request)
    return request, rank


def tell(request: Request[Frames, None]) -> list[ChangePages]:
    return list(request.tell(0))


def acknowledge(request: Request[Frames, None], rank: Rank, version: int) -> list[Frames]:
    request.acknowledge(rank, version)
    return settle(request)


def leave(request: Request[Frames, None], rank: Rank) -> list[Frames]:
    request.leave(rank)
    return settle(request)


def settle(request: Request[Frames, None]) -> list[Frames]:
    """All that may take effect; the planner does so little by little."""
    freed = []
    while request.behind:
        copy = request.settle()
        freed += [] if copy is None else [copy]
    return freed


def test_a_revocation_takes_effect_when_it_is_acknowledged():
    """Until then the copy is held; then it is handed back once, and an acknowledgement that comes again is nothing."""
    request, rank = make()
    request.revoke(0, 0b11)
    [change] = tell(request)
    assert (change.version, change.revoked) == (2, [PageRevoke(0, 0), PageRevoke(0, 1)])
    assert acknowledge(request, rank, 1) == []
    assert request.held(0) == 0b11
    assert acknowledge(request, rank, 2) == [COPIES[0]]
    assert acknowledge(request, rank, 2) == []
    assert request.held(0) == 0
    assert request.held(1) == 0b11


def test_an_old_version_does_not_free_what_a_newer_one_revoked():
    """A chunk revoked, granted again and revoked again is held until the newer revocation is acknowledged."""
    request, rank = make(1)
    request.revoke(0, 0b01)
    tell(request)
    request.grant(0, COPIES[0], 0b01)
    tell(request)
    request.revoke(0, 0b11)
    tell(request)
    assert acknowledge(request, rank, 2) == []
    assert request.held(0) == 0b11
    assert acknowledge(request, rank, 4) == [COPIES[0]]


def test_a_revocation_that_was_not_told_is_not_acknowledged_by_an_older_one():
    """Revoked once more within one event, the chunk is held although the first revocation has been acknowledged."""
    request, rank = make(1)
    request.revoke(0, 0b11)
    tell(request)
    request.grant(0, COPIES[0], 0b11)
    request.revoke(0, 0b11)
    assert acknowledge(request, rank, 2) == []
    assert request.held(0) == 0b11
    [change] = tell(request)
    assert acknowledge(request, rank, change.version) == [COPIES[0]]


def test_a_chunk_granted_again_stays_held():
    """The acknowledgement of its revocation lets go of nothing that was granted since."""
    request, rank = make(1)
    request.revoke(0, 0b11)
    tell(request)
    request.grant(0, COPIES[0], 0b10)
    tell(request)
    assert acknowledge(request, rank, 3) == []
    assert request.held(0) == 0b10


def test_versions_may_skip():
    """Acknowledging the newest version acknowledges all before it."""
    request, rank = make()
    for position in (0, 1):
        request.revoke(position, 0b11)
        tell(request)
    assert acknowledge(request, rank, 3) == [COPIES[0], COPIES[1]]


def test_all_ranks_must_acknowledge():
    """What one rank has acknowledged the other may still read; a rank that leaves has acknowledged everything."""
    request, first = make()
    second = request.join(2)
    request.attach(second, 0, KEYS[:2])
    tell(request)
    request.revoke(0, 0b11)
    request.revoke(1, 0b11)
    tell(request)
    assert acknowledge(request, first, 3) == []
    assert request.held(0) == 0b11
    assert leave(request, second) == [COPIES[0], COPIES[1]]


def test_a_rank_that_joins_late_is_told_everything_at_the_others_next_version():
    """Both have the same table at the same version, whoever attached first; what is leaving is not listed."""
    request, _ = make()
    request.revoke(0, 0b01)
    tell(request)
    second = request.join(2)
    assert second.told == 2
    request.attach(second, 0, KEYS[:2])
    changes = {change.session: change for change in tell(request)}
    assert {change.version for change in changes.values()} == {3}
    assert changes[1].granted == []
    assert changes[2].granted == [PageGrant(0, 1, 1), PageGrant(1, 0, 10), PageGrant(1, 1, 11)]


def test_a_rank_is_told_of_a_block_only_when_it_has_attached_it():
    """Another rank's extension changes the version of both, and the table of one."""
    request, first = make(1)
    second = request.join(2)
    request.attach(second, 0, KEYS[:1])
    tell(request)
    request.attach(first, 1, KEYS[1:2])
    request.grant(1, COPIES[1], 0b11)
    changes = {change.session: change for change in tell(request)}
    assert changes[2].granted == []
    assert [page.block for page in changes[1].granted] == [1, 1]
    request.attach(second, 1, KEYS[1:2])
    changes = {change.session: change for change in tell(request)}
    assert [page.block for page in changes[2].granted] == [1, 1]
    assert changes[1].granted == []


def test_a_rank_whose_socket_is_closed_holds_until_it_is_gone():
    """It is told nothing more and acknowledges nothing; what the others have acknowledged is held for it."""
    request, first = make(1)
    second = request.join(2)
    request.attach(second, 0, KEYS[:1])
    tell(request)
    request.close(second)
    request.revoke(0, 0b11)
    assert [change.session for change in tell(request)] == [1]
    assert acknowledge(request, first, request.version) == []
    assert request.live
    assert leave(request, second) == [COPIES[0]]


def test_a_large_table_is_told_in_several_versions(monkeypatch: pytest.MonkeyPatch):
    """No message has more grants than its limit (but for one block's); together they have all of them, once."""
    monkeypatch.setattr(grants, "GRANTS_PER_MESSAGE_MAX", 4)
    request: Request[Frames, None] = Request(RequestId(1), None, "instance", 7)
    request.attach(request.join(1), 0, KEYS[:7])
    for position in range(7):
        request.grant(position, COPIES[position], 0b11)
    changes = tell(request)
    assert [change.version for change in changes] == [1, 2, 3, 4]
    assert all(len(change.granted) <= 5 for change in changes)
    told = {(page.block, page.chunk): page.frame for change in changes for page in change.granted}
    assert told == {(at, chunk): COPIES[at].frames[chunk] for at in range(7) for chunk in range(2)}


def test_chunks_in_a_mask():
    """From the first; none in an empty one."""
    assert list(chunks_in(0b1011)) == [0, 1, 3]
    assert list(chunks_in(0)) == []
