"""An S3 that fails, or does not answer, keeps nobody waiting who needs room."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import Fault, MoveKind, Outcome, Tier
from flexkv_py.core.state import S3_PATIENCE_NS, WRITE_PAUSE_NS_MIN
from flexkv_py.geometry import ALIGN_BYTES
from tests.core.conftest import CHUNKS, Bench, chain

RECORD_BYTES = ALIGN_BYTES + sum(CHUNKS)
DRAM_BLOCKS = 4
TIERS = {
    "dram, s3": {"tiers": (Tier.DRAM, Tier.S3)},
    "dram, ssd, s3": {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": 4 * RECORD_BYTES},
}


def end_all_but_s3(bench: Bench) -> None:
    """What goes to S3 gets no answer; all else ends."""
    silent = {move.transfer for move in bench.moves(MoveKind.DEMOTE) if move.tier is Tier.S3}
    while busy := [transfer for transfer in bench.running if transfer not in silent]:
        bench.finish(busy[0])
        silent |= {move.transfer for move in bench.moves(MoveKind.DEMOTE) if move.tier is Tier.S3}


def pass_ns(bench: Bench, until_ns: int) -> None:
    """Wake the planner when it asks for it, as a daemon would, and end all but what S3 owes."""
    end_all_but_s3(bench)
    while (due_ns := bench.planner.next_deadline_ns()) is not None and due_ns <= until_ns:
        bench.now_ns = max(due_ns, bench.now_ns + 1)
        bench.tick()
        end_all_but_s3(bench)
    bench.now_ns = max(bench.now_ns, until_ns)


@pytest.mark.parametrize("tiers", TIERS)
def test_saves_do_not_wait_for_an_s3_that_does_not_answer(benches: Any, tiers: str) -> None:
    """With all of DRAM to be written below and S3 silent, a save is stored within the patience, not at its deadline."""
    bench = benches(dram_segments=DRAM_BLOCKS, demotions_in_flight_max=2, **TIERS[tiers])
    for number in range(12):
        begun_ns = bench.now_ns
        ticket = bench.save(chain(1, str(number)), deadline_ns=begun_ns + (1 << 40))
        pass_ns(bench, begun_ns + S3_PATIENCE_NS + 1)
        assert bench.outcomes(ticket) == [Outcome.STORED], number


@pytest.mark.parametrize("tiers", TIERS)
def test_saves_do_not_wait_for_a_pause_of_s3(benches: Any, tiers: str) -> None:
    """After a fault S3 is given a pause; a save that needs room meanwhile gets it at once."""
    bench = benches(dram_segments=DRAM_BLOCKS, demotions_in_flight_max=1, **TIERS[tiers])
    number = 0
    while not bench.moves(MoveKind.DEMOTE) or bench.moves(MoveKind.DEMOTE)[0].tier is not Tier.S3:
        bench.save(chain(1, str(number)))
        end_all_but_s3(bench)
        number += 1
    [write] = bench.moves(MoveKind.DEMOTE)
    bench.finish(write.transfer, Fault.IO)
    for number in range(100, 100 + 2 * DRAM_BLOCKS):
        ticket = bench.save(chain(1, str(number)))
        end_all_but_s3(bench)
        assert bench.now_ns < WRITE_PAUSE_NS_MIN
        assert bench.outcomes(ticket) == [Outcome.STORED], number


def test_a_healthy_s3_is_waited_for(benches: Any) -> None:
    """A burst larger than DRAM loses nothing that was acknowledged as long as S3 goes on answering."""
    bench = benches(dram_segments=DRAM_BLOCKS, tiers=(Tier.DRAM, Tier.S3), demotions_in_flight_max=1)
    keys = [chain(1, str(number))[0] for number in range(12)]
    for key in keys:
        bench.save([key])
    while bench.running:
        bench.now_ns += S3_PATIENCE_NS // 2
        bench.settle_once()
    assert all(bench.copy(key, Tier.DRAM) or bench.copy(key, Tier.S3) for key in keys)


def test_a_leased_block_is_kept_and_nobody_waits_for_it(benches: Any) -> None:
    """A lease promises the block: with S3 silent it stays, and what comes after it in the order makes the room."""
    bench = benches(dram_segments=3, tiers=(Tier.DRAM, Tier.S3), dram_clean_ahead=0.0, demotions_in_flight_max=1)
    for key in ("first", "held", "other"):
        bench.save(chain(1, key))
        end_all_but_s3(bench)
    bench.match(chain(1, "held"), hold_ns=1 << 50)
    ticket = bench.save(chain(1, "new"), deadline_ns=1 << 40)
    pass_ns(bench, S3_PATIENCE_NS + 1)
    assert bench.outcomes(ticket) == [Outcome.STORED]
    assert bench.match(chain(1, "held")).length == 1
    assert bench.match(chain(1, "other")).length == 0
