"""Nobody asks, and the planner comes to rest: no two of its decisions undo each other, no wake-up is in vain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.config import SECOND_NS
from flexkv_py.core.messages import (
    AbsentEntry,
    BlocksFound,
    ChangePages,
    Fault,
    FoundBlock,
    HeatReported,
    MoveKind,
    Outcome,
    PagesAcknowledged,
    RefuseReplay,
    RequestAttached,
    SessionClosed,
    SessionOpened,
    StartMove,
    Tier,
    TierChanged,
    WorkerGone,
)
from flexkv_py.core.state import WRITE_FAULTS_IN_ROW_MAX
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.rows import leaving
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.table import RowLimits
from tests.core.conftest import CHUNKS, NAMESPACE, SPEC, Bench, chain

RECORD_BYTES = ALIGN_BYTES + sum(CHUNKS)
TIERS = (Tier.DRAM, Tier.SSD, Tier.S3)
ROUNDS_MAX = 200
NEXT_NS = 500_000
EVERYTHING = {(position, chunk) for position in range(3) for chunk in range(2)}
"""Of a request of three blocks."""


def find(bench: Bench, keys: list[BlockKey], tier: Tier = Tier.SSD) -> None:
    """The tier has these from an earlier life."""
    found = [FoundBlock(key, parent, at) for at, (key, parent) in enumerate(zip(keys, (ROOT, *keys), strict=False))]
    bench.post(BlocksFound(tier, NAMESPACE, 0, RECORD_BYTES, found, bench.now_ns))


def rest(bench: Bench, s3_fault: Fault | None = None, until_ns: int = 0) -> int:
    """End what runs and pass the time until nothing is due any more (or `until_ns`); how often that took an event."""
    for rounds in range(ROUNDS_MAX):
        due_ns = bench.planner.next_deadline_ns()
        if bench.running:
            for transfer, [move, *_] in list(bench.running.items()):
                writes = isinstance(move, StartMove) and move.kind is MoveKind.DEMOTE and move.tier is Tier.S3
                bench.finish(transfer, s3_fault if writes else None)
        elif due_ns is None or 0 < until_ns < due_ns:
            return rounds
        else:
            bench.now_ns = max(due_ns, bench.now_ns + NEXT_NS)
            bench.tick()
    raise AssertionError(f"no rest after {ROUNDS_MAX} rounds")


def test_writes_into_a_full_tier_come_to_an_end(benches: Any) -> None:
    """DRAM and SSD want to write into an S3 with room for one block: each block is written there once, not for ever."""
    bench = benches(
        tiers=TIERS, dram_segments=4, ssd_bytes=2 * RECORD_BYTES, s3_bytes=RECORD_BYTES, ssd_clean_ahead=0.5,
        dram_clean_ahead=0.0,
    )  # fmt: skip
    find(bench, chain(2, "old"))
    written = []
    before = bench.post

    def post(event: Any) -> Any:
        out = before(event)
        written.extend(one.block.key for one in out if isinstance(one, StartMove) and one.kind is MoveKind.DEMOTE)
        return out

    bench.post = post
    for branch in "abc":
        bench.save(chain(4, branch))
    rest(bench)
    assert len(written) == len(set(written))


def test_a_copy_whose_record_made_room_stays_ready_to_go(benches: Any) -> None:
    """It had its turn below: it goes unwritten when DRAM needs the room, and is served from there until then."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), dram_segments=4, ssd_bytes=2 * RECORD_BYTES, dram_clean_ahead=0.0)
    [first], [second] = chain(1, "first"), chain(1, "second")
    bench.save([first], ack=Tier.SSD)
    bench.settle()
    assert bench.copy(first, Tier.DRAM) is not None
    bench.save([second], ack=Tier.SSD)
    bench.settle()
    assert bench.copy(second, Tier.SSD).state is CopyState.READY
    assert bench.copy(first, Tier.SSD) is None
    assert bench.copy(first, Tier.DRAM).stands_ready
    used = bench.load([first])
    bench.settle()
    assert bench.outcomes(used) == [Outcome.LOADED]
    assert not bench.copy(first, Tier.DRAM).stands_ready


def test_a_leased_block_keeps_the_record_its_copy_counts_on(benches: Any) -> None:
    """A record is not evicted for room while it is all a leased block would be left with."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), dram_segments=4, ssd_bytes=2 * RECORD_BYTES, dram_clean_ahead=0.0)
    [first], [second] = chain(1, "first"), chain(1, "second")
    bench.save([first], ack=Tier.SSD)
    bench.settle()
    bench.match([first], hold_ns=1 << 40)
    bench.save([second], ack=Tier.SSD)
    bench.settle()
    assert bench.copy(first, Tier.SSD).state is CopyState.READY
    assert bench.copy(second, Tier.SSD) is None


def test_an_ssd_that_is_down_is_left_alone(benches: Any) -> None:
    """Nothing is staged from an SSD that cannot be read: each block would be refused at once and set aside again."""
    bench = benches(tiers=TIERS, dram_segments=4, ssd_bytes=8 * RECORD_BYTES, ssd_clean_ahead=0.5)
    bench.post(TierChanged(Tier.SSD, False, "unplugged", bench.now_ns))
    find(bench, chain(7))
    assert rest(bench) == 0
    assert ("not_staged", "s3") not in bench.planner.counters


def test_nothing_is_set_aside_for_an_s3_that_is_full(benches: Any) -> None:
    """After a write that found no room the SSD waits for the pause to end, and does not offer block after block."""
    bench = benches(tiers=TIERS, dram_segments=16, ssd_bytes=8 * RECORD_BYTES, ssd_clean_ahead=0.5)
    s3 = bench.planner.state.levels[Tier.S3]
    find(bench, chain(16, "other"), Tier.S3)
    bench.match(chain(16, "other"), hold_ns=1 << 40)
    find(bench, chain(7))
    rest(bench, Fault.FULL, until_ns=NEXT_NS)
    assert s3.full
    refused = bench.planner.counters["not_staged", "s3"]
    assert rest(bench, Fault.FULL, until_ns=s3.pause_until_ns - 1) == 0
    assert bench.planner.counters["not_staged", "s3"] == refused


def test_staging_tries_a_failing_s3_after_each_pause(benches: Any) -> None:
    """With an SSD between, nothing else is written to S3: staging itself finds out that it works again."""
    bench = benches(
        tiers=TIERS, dram_segments=16, ssd_bytes=8 * RECORD_BYTES, ssd_clean_ahead=0.9, demotions_in_flight_max=1
    )
    find(bench, chain(7))
    s3 = bench.planner.state.levels[Tier.S3]
    for _ in range(WRITE_FAULTS_IN_ROW_MAX):
        rest(bench, Fault.LATE, until_ns=bench.now_ns + NEXT_NS)
        bench.now_ns = s3.pause_until_ns
        bench.tick()
    assert s3.failing
    rest(bench)
    for key in chain(7):
        bench.load([key])
    rest(bench)
    assert not s3.failing
    assert bench.planner.counters["demotions", "s3"] > 0


@pytest.mark.parametrize("policy", ROW_POLICIES)
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("round_ms", [0.5, 5, 50])
def test_requests_that_push_each_other_out_take_turns(
    benches: Any, monkeypatch: pytest.MonkeyPatch, policy: str, count: int, round_ms: float
) -> None:
    """Requests fail steps that need three quarters of DRAM each: one after the other gets it, again and again."""
    monkeypatch.setattr(leaving, "COLD_SCAN_MAX", 3)  # fewer than what a step has pinned
    bench = three_quarters(benches, count, policy=policy, absent_replays_max=len(EVERYTHING))
    steps: Counter[int] = Counter()
    asked: dict[int, set[tuple[int, int]]] = {request: set() for request in range(1, count + 1)}
    for turn in range(1, ROUNDS_MAX + 1):
        for request in list(asked):
            there = apply_pages(bench, request)
            asked[request] -= there  # what leaves again is asked for again
            if absents := EVERYTHING - there - asked[request]:
                fail(bench, request, absents)
                asked[request] |= absents
            elif there >= EVERYTHING:
                bench.post(HeatReported(1, [], [], [request], [], bench.now_ns))
                steps[request] += 1
        rest(bench, until_ns=bench.now_ns + NEXT_NS)
        bench.now_ns = max(bench.now_ns, int(turn * round_ms * 1e6))
        bench.tick()
    assert not [told for told in bench.told if isinstance(told, RefuseReplay)]
    assert min(steps[request] for request in asked) > ROUNDS_MAX / (3 * count)


def test_a_step_that_is_not_tried_again_in_time_yields_what_it_has_pinned(benches: Any) -> None:
    """An engine that asked and never came back keeps nobody from getting on for longer than its time limit."""
    bench = three_quarters(benches, 2)
    fail(bench, 1, EVERYTHING)
    rest(bench, until_ns=1)
    assert apply_pages(bench, 1) == EVERYTHING
    bench.now_ns = SECOND_NS // 2
    fail(bench, 2, EVERYTHING)
    for _ in range(len(EVERYTHING)):
        rest(bench, until_ns=SECOND_NS - 1)
        apply_pages(bench, 1)
    assert apply_pages(bench, 2) < EVERYTHING
    bench.now_ns = SECOND_NS
    bench.tick()
    for _ in range(len(EVERYTHING)):
        apply_pages(bench, 1)
        rest(bench, until_ns=SECOND_NS + NEXT_NS)
    assert apply_pages(bench, 2) == EVERYTHING


def test_a_step_that_waits_for_room_keeps_what_it_has_and_lets_no_guess_in(benches: Any) -> None:
    """A process that may still read has the room: what the step has pinned does not go for its own sake, then it is
    refused in time.
    """
    bench = three_quarters(benches, 1)
    bench.post(SessionOpened(2, SPEC, 0, bench.now_ns))
    find(bench, chain(3, "other"))
    bench.post(RequestAttached(2, 900, 2, 0, chain(3, "other"), bench.now_ns))
    bench.post(HeatReported(2, [], [AbsentEntry(2, *spot) for spot in sorted(EVERYTHING)], [], [], bench.now_ns))
    rest(bench, until_ns=1)
    bench.post(SessionClosed(2, bench.now_ns))
    rows, guesses = bench.planner.state.rows, list[int]()
    fail(bench, 1, EVERYTHING)
    for _ in range(len(EVERYTHING)):
        rest(bench, until_ns=SECOND_NS - 1)
        assert apply_pages(bench, 1) < EVERYTHING
    rows.policy.ahead = lambda now_ns: guesses.append(now_ns) or []
    bench.tick()
    assert rows.elder is rows.find(1, 1)[0]
    assert not guesses
    assert not [told for told in bench.told if isinstance(told, ChangePages) and told.revoked]
    bench.now_ns = SECOND_NS
    bench.tick()
    assert [told.request for told in bench.told if isinstance(told, RefuseReplay)] == [1]
    bench.post(WorkerGone(2, bench.now_ns))
    rest(bench)


def three_quarters(benches: Any, count: int, **limits: Any) -> Bench:
    """So many requests whose blocks are on SSD; each fits DRAM, no two do."""
    rows = RowLimits(pinned_share_max=1.0, replay_ns_max=SECOND_NS, **limits)
    bench: Bench = benches(tiers=TIERS[:2], ssd_bytes=1 << 20, dram_segments=4, dram_clean_ahead=0.0, rows=rows)
    for request in range(1, count + 1):
        find(bench, chain(3, str(request)))
        bench.post(RequestAttached(1, 900, request, 0, chain(3, str(request)), bench.now_ns))
    return bench


def fail(bench: Bench, request: int, spots: set[tuple[int, int]]) -> None:
    """A step of the request misses these chunks."""
    bench.post(HeatReported(1, [], [AbsentEntry(request, *spot) for spot in sorted(spots)], [], [], bench.now_ns))


def apply_pages(bench: Bench, request: int) -> set[tuple[int, int]]:
    """What a worker may read that applies and acknowledges at once."""
    pages: set[tuple[int, int]] = set()
    version = 0
    for change in bench.told:
        if isinstance(change, ChangePages) and change.request == request:
            pages -= {(revoked.block, revoked.chunk) for revoked in change.revoked}
            pages |= {(page.block, page.chunk) for page in change.granted}
            version = change.version
    bench.post(PagesAcknowledged(1, request, version, bench.now_ns))
    return pages
