"""`flexkv replay --dry`: the planner's hits are those of a plain LRU, and the published ones."""

from __future__ import annotations

import json
import random

import pytest

from flexkv_py.core.messages import Tier
from flexkvd.cli import main
from flexkvd.cli.dry import DryRun, Room, planner_config
from tests.published import MOONCAKE, WEKA, lru_hit_ratio, needs_traces


def chat(seed: int, requests: int) -> list[list[int]]:
    """Conversations that grow turn by turn, interleaved; ids name whole prefixes, as in the traces."""
    chance = random.Random(seed)
    fresh = iter(range(1, 1 << 30))
    conversations = [[0] for _ in range(20)]
    asked = []
    for _ in range(requests):
        conversation = chance.choice(conversations)
        conversation += [next(fresh) for _ in range(chance.randrange(6))]
        asked.append(list(conversation))
        if len(conversation) > 40:
            conversation[1:] = []
    return asked


@pytest.mark.parametrize("capacity", [50, 150, 400, None])
def test_the_planner_hits_what_a_plain_lru_hits(capacity):
    """With room for several requests at least, both orders of eviction are the same, block for block."""
    requests = chat(seed=1, requests=600)
    dry = DryRun(planner_config(Room(capacity), policy="lru"))
    for ids in requests:
        dry.serve(ids)
    assert dry.count.blocks == sum(map(len, requests))
    assert dry.count.ratio == pytest.approx(lru_hit_ratio(requests, capacity), abs=0.003)


def test_a_request_larger_than_the_cache_is_served_too(capsys):
    """What finds no room is not cached, and the run goes on."""
    dry = DryRun(planner_config(Room(4), policy="lru"))
    for _ in range(3):
        dry.serve(range(10))
    assert dry.count.requests == 3
    assert 0 <= dry.count.hits <= 12


def test_the_command_prints_and_writes_both_ratios(tmp_path, capsys):
    """Counting every listed block, and full blocks only; the JSON has `hit_ratio_blocks`."""
    trace, result = tmp_path / "trace.jsonl", tmp_path / "result.json"
    line = {"timestamp": 0, "input_length": 1300, "output_length": 1, "hash_ids": [0, 1, 2]}
    trace.write_text(f"{json.dumps(line)}\n" * 4)
    assert main(["replay", str(trace), "--dry", "--dram-blocks", "inf", "--limit", "2", "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert written["hit_ratio_blocks"] == 0.5
    assert (written["requests"], written["blocks"], written["full_blocks"]) == (2, 6, 4)
    assert "50.00%  (3 of 6)" in capsys.readouterr().out


@needs_traces
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("path", "blocks", "percent_min", "percent_max"),
    [
        (MOONCAKE, 10_000, 20.8, 21.4),
        pytest.param(MOONCAKE, 30_000, 32.3, 32.9, marks=pytest.mark.full),
        pytest.param(MOONCAKE, None, 36.3, 36.9, marks=pytest.mark.full),
        pytest.param(WEKA, 10_000, 90.6, 91.7, marks=pytest.mark.full),
        pytest.param(WEKA, 30_000, 95.4, 96.0, marks=pytest.mark.full),
    ],
)
def test_the_planner_reaches_the_published_ratio(tmp_path, path, blocks, percent_min, percent_max):
    """The command itself, on a published trace, gives the published hit ratio."""
    result = tmp_path / "result.json"
    room = "inf" if blocks is None else str(blocks)
    chosen = ["--dram-blocks", room, "--policy", "lru"]
    assert main(["replay", str(path), "--dry", *chosen, "--json", str(result)]) == 0
    assert percent_min <= 100 * json.loads(result.read_text())["hit_ratio_blocks"] <= percent_max


@pytest.mark.parametrize("policy", ["lru", "adaptive"])
def test_two_small_tiers_hit_like_the_larger(policy):
    """What DRAM has lies on SSD too: at worst the SSD less its reserve counts, and both tiers serve hits."""
    requests, room = chat(seed=2, requests=1000), Room(45, 360)
    dry = DryRun(planner_config(room, policy=policy))
    for ids in requests:
        dry.serve(ids)
    assert dry.count.ratio >= lru_hit_ratio(requests, 360 - 36) - 0.01
    assert all(dry.count.tiers[tier] for tier in (Tier.DRAM, Tier.SSD))
    assert sum(dry.count.tiers.values()) == dry.count.hits


def test_nothing_is_lost_above_an_unlimited_tier():
    """DRAM, SSD and S3 as 1 to 8 to infinity, everything admitted: every block ever saved is a hit."""
    requests = chat(seed=3, requests=500)
    dry = DryRun(planner_config(Room(45, 360, None)))
    for ids in requests:
        dry.serve(ids)
    assert dry.count.ratio == pytest.approx(lru_hit_ratio(requests, None), abs=1e-9)
    assert all(dry.count.tiers[tier] for tier in (Tier.DRAM, Tier.SSD, Tier.S3))


def test_an_endurance_budget_costs_hits_not_more():
    """With nothing left to write to SSD, what DRAM holds still serves."""
    requests = chat(seed=4, requests=400)
    dry = DryRun(planner_config(Room(200, 800), ssd_bytes_per_day=1))
    for ids in requests:
        dry.serve(ids)
    assert dry.count.ratio == pytest.approx(lru_hit_ratio(requests, 200), abs=0.02)
    assert dry.counters["refused_admissions", "endurance budget"] > 0


def test_the_command_names_the_tiers_and_the_reference(tmp_path, capsys):
    """Rooms, hits by tier and the LRU of the summed room stand in the JSON; `inf` is no limit."""
    trace, result = tmp_path / "trace.jsonl", tmp_path / "result.json"
    ids = list(range(40))
    line = {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
    trace.write_text(f"{json.dumps(line)}\n" * 3)
    rooms = ["--dram-blocks", "16", "--ssd-blocks", "12", "--s3-blocks", "inf"]
    assert main(["replay", str(trace), "--dry", *rooms, "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert (written["dram_blocks"], written["ssd_blocks"], written["s3_blocks"]) == (16, 12, "inf")
    assert written["hit_ratio_blocks"] == written["lru_reference"] == pytest.approx(2 / 3)
    assert sum(written["hit_blocks_by_tier"].values()) == 80
    assert written["hit_blocks_by_tier"]["s3"] > 0


@needs_traces
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["lru", "adaptive"])
def test_two_tiers_on_a_published_trace(tmp_path, policy):
    """DRAM and SSD as 1 to 8 on the chat trace: within 1 point of LRU at the summed capacity."""
    result = tmp_path / "result.json"
    rooms = ["--dram-blocks", "1000", "--ssd-blocks", "8000", "--policy", policy]
    assert main(["replay", str(MOONCAKE), "--dry", *rooms, "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert written["hit_ratio_blocks"] >= written["lru_reference"] - 0.01


@needs_traces
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("blocks", [1_000, 10_000, 30_000])
def test_the_default_order_is_no_worse_than_lru(tmp_path, blocks):
    """The adaptive order on the chat trace, at any size: not 0.3 points below LRU, and above it where LRU thrashes."""
    result = tmp_path / "result.json"
    assert main(["replay", str(MOONCAKE), "--dry", "--dram-blocks", str(blocks), "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert written["policy"] == "adaptive"
    assert written["hit_ratio_blocks"] >= written["lru_reference"] - 0.003
    assert blocks > 10_000 or written["hit_ratio_blocks"] >= written["lru_reference"] + 0.005
