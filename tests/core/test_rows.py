"""Running requests and the planner: what is granted, what leaves DRAM under them, what comes back for a failed step."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.messages import (
    AbsentEntry,
    AttachAnswered,
    ChangePages,
    DrainStarted,
    Fault,
    HeatEntry,
    HeatReported,
    LoseSession,
    LostRecord,
    MoveKind,
    NamespaceReset,
    Outcome,
    PagesAcknowledged,
    Priority,
    RecordsLost,
    RefuseReplay,
    ReplayOutcome,
    RequestAttached,
    RequestDetached,
    RequestDone,
    RequestRefused,
    SessionClosed,
    SessionOpened,
    StartCopies,
    Tier,
    WorkerGone,
)
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey
from flexkv_py.rows import leaving
from flexkv_py.rows.policy import Hunch, Place, Reason
from flexkv_py.rows.table import RowLimits
from tests.core.conftest import SPEC, Bench, chain

BELOW = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20, "dram_clean_ahead": 0.0, "dram_segments": 4}
"""DRAM for four blocks of two chunks."""

KEYS = chain(4)
OTHERS = chain(4, "other")
REQUEST = 70


def attach(bench: Bench, keys: list[BlockKey], first: int = 0, session: int = 1, request: int = REQUEST) -> Any:
    out = bench.post(RequestAttached(session, 900, request, first, keys, bench.now_ns))
    return next(answer for answer in out if isinstance(answer, AttachAnswered | RequestRefused))


def detach(bench: Bench, session: int = 1, request: int = REQUEST) -> Any:
    [answer] = [
        told
        for told in bench.post(RequestDetached(session, 901, request, bench.now_ns))
        if isinstance(told, RequestDone | RequestRefused)
    ]
    return answer


def acknowledge(bench: Bench, version: int, session: int = 1, request: int = REQUEST) -> None:
    bench.post(PagesAcknowledged(session, request, version, bench.now_ns))


def fail(bench: Bench, *spots: tuple[int, int], session: int = 1, replayed: bool = False) -> None:
    """A step missed these chunks; or the failed one has succeeded."""
    absents = [AbsentEntry(REQUEST, position, chunk) for position, chunk in spots]
    bench.post(HeatReported(session, [], absents, [REQUEST] if replayed else [], [], bench.now_ns))


def told(bench: Bench, kind: Any, session: int = 1) -> list[Any]:
    return [one for one in bench.told if isinstance(one, kind) and one.session == session]


def table(bench: Bench, session: int = 1, request: int = REQUEST) -> dict[tuple[int, int], int]:
    """What a worker may read that has applied everything it was told."""
    pages: dict[tuple[int, int], int] = {}
    for change in told(bench, ChangePages, session):
        if change.request == request:
            for revoked in change.revoked:
                pages.pop((revoked.block, revoked.chunk), None)
            pages |= {(page.block, page.chunk): page.frame for page in change.granted}
    return pages


def version(bench: Bench, session: int = 1) -> int:
    return told(bench, ChangePages, session)[-1].version


def decoding(benches: Any, **config: Any) -> Bench:
    """DRAM full of four blocks of one running request, all of them granted."""
    bench: Bench = benches(**BELOW | config)
    bench.save(KEYS)
    bench.settle()
    assert attach(bench, KEYS) == AttachAnswered(1, 900, REQUEST, 0)
    return bench


def test_what_is_in_dram_is_granted_and_what_comes_is_too(benches):
    """At attach the blocks that are there, as version 1; one that is saved later as the next."""
    bench = benches()
    bench.save(KEYS[:2])
    bench.settle()
    attach(bench, KEYS[:3])
    assert set(table(bench)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert table(bench)[1, 1] == bench.copy(KEYS[1], Tier.DRAM).frames[1]
    bench.save(KEYS[2:3], parent=KEYS[1])
    bench.settle()
    assert version(bench) == 2
    assert {(2, 0), (2, 1)} <= set(table(bench))
    attach(bench, KEYS[3:], first=3)
    assert version(bench) == 2 + 1
    assert detach(bench) == RequestDone(1, 901)


def test_granted_blocks_are_no_victims(benches):
    """Without a tier below nothing of a running request leaves DRAM; when it is over its blocks are like any others."""
    bench = benches(dram_segments=2)
    bench.save(KEYS[:2])
    bench.settle()
    attach(bench, KEYS[:2])
    ticket = bench.save(OTHERS[:1], deadline_ns=1)
    assert not bench.running
    bench.now_ns = 1
    bench.tick()
    assert bench.outcomes(ticket) == [Outcome.THROTTLED]
    assert len(table(bench)) == 4
    detach(bench)
    again = bench.save(OTHERS[:1])
    bench.settle()
    assert bench.outcomes(again) == [Outcome.STORED]


def test_room_is_made_by_writing_below_revoking_and_waiting_for_the_acknowledgement(benches):
    """The coldest block is written first, then its chunks are revoked; the save gets their frames after the ack."""
    bench = decoding(benches)
    warm = [HeatEntry(REQUEST, position, chunk, 9) for position in (0, 1, 2) for chunk in (0, 1)]
    bench.post(HeatReported(1, warm, [], [], [], bench.now_ns))
    bench.save(OTHERS[:1])
    while moves := bench.moves(MoveKind.DEMOTE):
        for move in moves:
            bench.finish(move.transfer)
    assert set(table(bench)) == {(at, chunk) for at in (0, 1, 2) for chunk in (0, 1)}
    assert not any(isinstance(first, StartCopies) for [first, *_] in bench.running.values())
    acknowledge(bench, 1)
    assert not bench.running, "an old version frees nothing"
    acknowledge(bench, version(bench))
    assert bench.copy(KEYS[3], Tier.DRAM) is None
    [[copies]] = bench.running.values()
    assert isinstance(copies, StartCopies)
    bench.settle()


def shrunk(benches: Any, **config: Any) -> Bench:
    """As `decoding`, but chunk 1 of the first two blocks has left DRAM."""
    bench = decoding(benches, **config)
    move_down(bench)
    warm = [HeatEntry(REQUEST, at, chunk, 9) for at, chunk in ((0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1))]
    bench.post(HeatReported(1, warm, [], [], [], bench.now_ns))
    bench.save(OTHERS[:1])
    acknowledge(bench, version(bench))
    bench.settle()
    assert [bench.copy(key, Tier.DRAM).present for key in KEYS] == [0b01, 0b01, 0b11, 0b11]
    return bench


def move_down(bench: Bench) -> None:
    """Have all blocks of the request written to SSD, by a save that says so."""
    bench.save(KEYS, ack=Tier.SSD)
    bench.settle()


def test_a_chunk_leaves_alone_and_comes_back_alone(benches):
    """Of a block that is whole below one chunk may go; for a failed step it is read by itself, and granted."""
    bench = shrunk(benches)
    detach_others(bench)
    fail(bench, (0, 1))
    [move] = bench.moves(MoveKind.PROMOTE)
    assert (move.chunks, move.priority) == (0b10, Priority.LOAD)
    bench.settle()
    assert table(bench)[0, 1] == bench.copy(KEYS[0], Tier.DRAM).frames[1]
    assert bench.copy(KEYS[0], Tier.DRAM).present == 0b11


def detach_others(bench: Bench) -> None:
    """Make room that nobody waits for: the other save's block is written below, and may go."""
    bench.save(OTHERS[:1], ack=Tier.SSD)
    bench.settle()


def test_what_the_policy_wants_back_waits_for_room(benches):
    """DRAM is full when the policy speaks of a chunk: it comes as soon as there is room, without being named again."""
    bench = shrunk(benches)
    rows = bench.planner.state.rows
    [request] = rows.by_id.values()
    hunches = [Hunch(Place(request.id, 0, 1), Reason.RISING), Hunch(Place(request.id, 9, 0), Reason.RISING)]
    rows.policy.ahead = lambda _: [hunches.pop(0)] if hunches else []
    bench.tick()
    assert (0, 1) not in table(bench)
    assert bench.moves(MoveKind.PROMOTE) == []
    bench.save(OTHERS[:1], ack=Tier.SSD)
    bench.settle()
    assert (0, 1) in table(bench)
    assert not rows.hunches


def test_what_a_failed_step_needs_stays_until_it_has_succeeded(benches):
    """It is not revoked however cold it is; once the replay is told to have succeeded it is like any other."""
    bench = shrunk(benches)
    detach_others(bench)
    fail(bench, (0, 1), (0, 0))
    bench.settle()
    warm = [HeatEntry(REQUEST, at, chunk, 9) for at, chunk in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1))]
    bench.post(HeatReported(1, warm, [], [], [], bench.now_ns))
    bench.save(OTHERS[1:2], parent=OTHERS[0])
    assert {(0, 0), (0, 1)} <= set(table(bench)), "the coldest of all, but pinned"
    fail(bench, replayed=True)
    acknowledge(bench, version(bench))
    bench.settle()
    bench.save(OTHERS[2:3], parent=OTHERS[1])
    acknowledge(bench, version(bench))
    bench.settle()
    assert not {(0, 0), (0, 1)} <= set(table(bench))


def test_a_load_of_a_block_that_is_there_in_part_reads_what_is_missing(benches):
    """The chunk that left is promoted, and the worker gets all of them."""
    bench = shrunk(benches)
    detach_others(bench)
    ticket = bench.load(KEYS[:1])
    [move] = bench.moves(MoveKind.PROMOTE)
    assert move.chunks == 0b10
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED]


def test_a_refill_that_fails_leaves_what_was_there(benches):
    """An error of the disk costs the chunk that was read, not the ones a running request reads."""
    bench = shrunk(benches)
    detach_others(bench)
    ticket = bench.load(KEYS[:1])
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.IO)
    bench.settle_copies()
    assert bench.outcomes(ticket) == [Outcome.FAILED]
    copy = bench.copy(KEYS[0], Tier.DRAM)
    assert (copy.state, copy.present, copy.filling) == (CopyState.READY, 0b01, 0)
    assert (0, 0) in table(bench)


def test_a_block_in_part_whose_record_is_lost_is_revoked(benches):
    """Nothing can make it whole again: its chunks are revoked, and the frames are free when that is acknowledged."""
    bench = shrunk(benches)
    block, record = bench.planner.state.index(SPEC.digest, 0).blocks[KEYS[0]], bench.copy(KEYS[0], Tier.SSD)
    used = bench.planner.state.frames.used_pages
    bench.post(RecordsLost(Tier.SSD, [LostRecord(block.name, record.location)], "reclaimed", bench.now_ns))
    assert (0, 0) not in table(bench)
    assert bench.planner.state.frames.used_pages == used
    acknowledge(bench, version(bench))
    assert bench.planner.state.frames.used_pages < used
    fail(bench, (0, 0))
    [refusal] = told(bench, RefuseReplay)
    assert refusal.outcome is ReplayOutcome.LOST


def test_a_replay_is_refused_when_its_time_is_over(benches):
    """With no room to be had, what a failed step asked for is refused after its limit, and nothing of it is pinned."""
    bench = shrunk(benches, rows=RowLimits(replay_ns_max=1000, pinned_share_max=1.0))
    fail(bench, *((at, chunk) for at in range(4) for chunk in range(2)))
    assert not told(bench, RefuseReplay)
    bench.now_ns += 1000
    bench.tick()
    [refusal] = told(bench, RefuseReplay)
    assert refusal.outcome is ReplayOutcome.NO_ROOM
    fail(bench, replayed=True)


def test_a_replay_that_asks_for_too_much_is_refused_at_once(benches):
    """A failed step may pin no more than its share of DRAM."""
    bench = shrunk(benches, rows=RowLimits(pinned_share_max=0.2))
    fail(bench, (0, 0), (0, 1))
    [refusal] = told(bench, RefuseReplay)
    assert refusal.outcome is ReplayOutcome.NO_ROOM
    assert not bench.moves(MoveKind.PROMOTE)


def test_a_step_that_fails_again_and_again_is_refused(benches):
    """After `absent_replays_max` failures in a row the worker is told to load the request whole, or to recompute."""
    bench = decoding(benches, rows=RowLimits(absent_replays_max=2))
    for _ in range(2):
        fail(bench, (0, 0))
    assert not told(bench, RefuseReplay)
    fail(bench, (0, 0))
    [refusal] = told(bench, RefuseReplay)
    assert refusal.outcome is ReplayOutcome.TOO_MANY
    assert "recompute" in refusal.message


def two_ranks(benches: Any, **config: Any) -> Bench:
    """As `decoding`, by the sessions 2 and 3 of one instance."""
    bench: Bench = benches(**BELOW | config)
    for session in (2, 3):
        bench.post(SessionOpened(session, SPEC, 0, bench.now_ns, "engine"))
    bench.save(KEYS)
    bench.settle()
    for session in (2, 3):
        attach(bench, KEYS, session=session)
    move_down(bench)
    return bench


def test_ranks_of_an_instance_have_the_same_table_and_all_must_acknowledge(benches):
    """One request for both; a frame comes back when the last of them has acknowledged."""
    bench = two_ranks(benches)
    assert table(bench, 2) == table(bench, 3)
    assert version(bench, 2) == version(bench, 3)
    bench.save(OTHERS[:1])
    acknowledge(bench, version(bench, 2), session=2)
    assert not bench.running
    acknowledge(bench, version(bench, 3), session=3)
    assert bench.running
    bench.settle()


def test_the_frames_of_a_killed_worker_come_back_when_its_process_is_gone(benches):
    """A closed socket frees nothing of the row path: the process may still read. Its end frees everything."""
    bench = two_ranks(benches)
    bench.save(OTHERS[:1])
    acknowledge(bench, version(bench, 2), session=2)
    bench.post(SessionClosed(3, bench.now_ns))
    assert not bench.running
    bench.post(WorkerGone(3, bench.now_ns))
    assert bench.running
    bench.settle()
    bench.post(SessionClosed(2, bench.now_ns))
    assert bench.copy(KEYS[1], Tier.DRAM).readers == 1
    bench.post(WorkerGone(2, bench.now_ns))
    assert bench.copy(KEYS[1], Tier.DRAM).readers == 0
    assert not bench.planner.state.rows.by_id


def test_what_a_dying_worker_holds_is_not_asked_for(benches, monkeypatch):
    """Its chunks are the coldest, and there are more than one event looks at; room is made of another request's."""
    monkeypatch.setattr(leaving, "COLD_SCAN_MAX", 4)
    bench = benches(**BELOW)
    bench.post(SessionOpened(2, SPEC, 0, bench.now_ns))
    bench.save(KEYS, ack=Tier.SSD)
    bench.settle()
    attach(bench, KEYS[:2], session=2)
    attach(bench, KEYS[2:], request=REQUEST + 1)
    bench.post(SessionClosed(2, bench.now_ns))
    bench.save(OTHERS[:1])
    assert len(table(bench, request=REQUEST + 1)) == 2
    bench.post(WorkerGone(2, bench.now_ns))
    bench.settle()


def test_a_worker_that_does_not_acknowledge_in_time_loses_its_session(benches):
    """Once, for the rank that owes; the other keeps its session."""
    bench = two_ranks(benches, rows=RowLimits(ack_ns_max=1000))
    bench.save(OTHERS[:1])
    acknowledge(bench, version(bench, 2), session=2)
    bench.now_ns += 1000
    bench.tick()
    bench.tick()
    assert len(told(bench, LoseSession, 3)) == 1
    assert told(bench, LoseSession, 2) == []


def test_an_acknowledgement_of_what_was_never_sent_costs_the_session(benches):
    """Nothing it says afterwards could be believed; one of a request that is detached is just late."""
    bench = decoding(benches)
    acknowledge(bench, 99)
    assert len(told(bench, LoseSession)) == 1
    acknowledge(bench, 1, request=REQUEST + 1)
    assert len(told(bench, LoseSession)) == 1


def test_a_reset_takes_everything_from_running_requests(benches):
    """All is revoked at once; the reset is answered when that is acknowledged and everything is gone."""
    bench = decoding(benches)
    bench.post(NamespaceReset(1, 500, SPEC.digest, bench.now_ns))
    assert table(bench) == {}
    assert RequestDone(1, 500) not in bench.told
    acknowledge(bench, version(bench))
    assert RequestDone(1, 500) in bench.told
    assert bench.planner.state.frames.used_pages == 0
    refusal = attach(bench, KEYS)
    assert (refusal.code, "detach it" in refusal.message) == (ErrorCode.BAD_ARGUMENT, True)
    detach(bench)
    assert isinstance(attach(bench, KEYS), AttachAnswered)


def test_a_request_that_ends_is_let_go_in_slices(benches):
    """So many blocks with each event, the last of the chain first; its number may be used again at once."""
    bench = decoding(benches, rows=RowLimits(let_go_per_event_max=1))
    assert detach(bench) == RequestDone(1, 901)
    assert isinstance(attach(bench, KEYS[:1]), AttachAnswered)
    assert [bench.copy(key, Tier.DRAM).readers for key in KEYS] == [2, 1, 0, 0]
    while bench.planner.next_deadline_ns() == bench.now_ns:
        bench.tick()
    assert [bench.copy(key, Tier.DRAM).readers for key in KEYS] == [1, 0, 0, 0]


def test_a_reset_and_its_acknowledgement_take_effect_in_slices(benches):
    """No version revokes more blocks than one event looks at; one acknowledgement of the last is for all of them."""
    bench = decoding(benches, rows=RowLimits(let_go_per_event_max=1))
    bench.post(NamespaceReset(1, 500, SPEC.digest, bench.now_ns))
    while bench.planner.next_deadline_ns() == bench.now_ns:
        bench.tick()
    changes = told(bench, ChangePages)[1:]
    assert [{page.block for page in change.revoked} for change in changes] == [{3}, {2}, {1}, {0}]
    acknowledge(bench, version(bench))
    assert bench.planner.state.frames.used_pages
    while bench.planner.next_deadline_ns() == bench.now_ns:
        bench.tick()
    assert bench.planner.state.frames.used_pages == 0
    assert RequestDone(1, 500) in bench.told


@pytest.mark.parametrize(
    ("keys", "first", "code", "cure"),
    [
        (KEYS[2:], 2, ErrorCode.BAD_ARGUMENT, "leaves a hole"),
        (OTHERS[:1], 0, ErrorCode.BAD_ARGUMENT, "other keys"),
        (KEYS[:1], 1, ErrorCode.DUPLICATE_KEY, "attached already"),
        (OTHERS, 1, ErrorCode.LIMIT_EXCEEDED, "blocks_per_request_max"),
    ],
)
def test_what_cannot_be_attached_is_refused(benches, keys, first, code, cure):
    """With a code and the cure; what was attached before goes on."""
    bench = benches(rows=RowLimits(blocks_per_request_max=4))
    attach(bench, KEYS[:1])
    refusal = attach(bench, keys, first=first)
    assert refusal.code is code
    assert cure in refusal.message
    assert isinstance(attach(bench, KEYS[:2]), AttachAnswered)


def test_one_client_does_not_fill_the_daemon_with_requests(benches):
    """The blocks of all its requests are counted; what it has may be named again, and detaching makes room."""
    bench = benches(rows=RowLimits(blocks_per_session_max=4))
    attach(bench, KEYS[:2])
    assert isinstance(attach(bench, KEYS[:2], request=71), AttachAnswered)
    refusal = attach(bench, KEYS[:1], request=72)
    assert (refusal.code, "blocks_per_session_max" in refusal.message) == (ErrorCode.LIMIT_EXCEEDED, True)
    assert attach(bench, KEYS[:3]).code is ErrorCode.LIMIT_EXCEEDED
    assert isinstance(attach(bench, KEYS[:2]), AttachAnswered)
    detach(bench, request=71)
    assert isinstance(attach(bench, KEYS[:4]), AttachAnswered)


def test_limits_of_requests_and_a_drain(benches):
    """A session has so many requests; while the daemon drains, those that run may go on, but no new one is attached."""
    bench = benches(rows=RowLimits(requests_per_session_max=1))
    attach(bench, KEYS[:1])
    assert attach(bench, KEYS[:1], request=71).code is ErrorCode.LIMIT_EXCEEDED
    assert detach(bench, request=71).code is ErrorCode.BAD_ARGUMENT
    bench.post(DrainStarted(bench.now_ns))
    assert isinstance(attach(bench, KEYS[:2]), AttachAnswered)
    detach(bench)
    assert attach(bench, KEYS[:1]).code is ErrorCode.DRAINING
