"""Requests over a DRAM that is too small: what policies cost, against each other and against the known future."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from flexkvd.rowreplay.link import LinkSpeed
from flexkvd.rowreplay.needs import RequestNeeds, needs_of
from flexkvd.rowreplay.run import ROW_POLICIES, Result, chunks_in_all, play, result_of
from flexkvd.rowreplay.world import World, WorldRules
from flexkvd.selections import PRESETS, Selection, Selections, Workload

CHUNK_BYTES = 1000


def rules_for(needs: list[RequestNeeds], share: float = 0.5, **given: object) -> WorldRules:
    given = {"speed": LinkSpeed(128, 1), "report_entries_max": 2048, **given}
    return WorldRules(room_chunks=int(share * chunks_in_all(needs)), **given)


@cache
def small(cluster: int, **given: int) -> list[RequestNeeds]:
    """Four requests of 32 K tokens that select 1,024 in a step, three layer groups."""
    given = {"steps": 160, "requests": 4, "groups": 3, **given}
    workload = Workload(preset=PRESETS["mid"], tokens=32_768, top_k=1024, cluster=cluster, **given)
    return needs_of(Selections(workload), hot_slots=2048)


@cache
def cost(policy: str, cluster: int, **given: int) -> Result:
    needs = small(cluster, **given)
    return result_of(play(needs, policy, rules_for(needs), iter), CHUNK_BYTES)


def test_a_failed_step_reads_what_it_lacks_and_is_tried_again():
    """One request, room for two of three blocks needed in turn: under LRU each step fails once and reads one chunk."""
    steps = [Selection(step, 0, 0, 193 + step, np.array([64 * (step % 3)], np.int32)) for step in range(40)]
    needs = needs_of(steps, hot_slots=1)
    world = play(needs, "lru", WorldRules(2, LinkSpeed(1, 1), prefill_steps=1, report_steps=1), iter)
    assert world.costs.steps == 29
    assert world.costs.failed == world.costs.absents == sum(world.costs.reads.values()) == 29
    assert world.costs.ticks == 2 * 29


def test_the_known_future_waits_for_nothing_and_reads_least():
    """On the same steps whoever knows them reads each chunk in the step before."""
    steps = [Selection(step, 0, 0, 193 + step, np.array([64 * (step % 3)], np.int32)) for step in range(40)]
    needs = needs_of(steps, hot_slots=1)
    world = play(needs, "future", WorldRules(2, LinkSpeed(1, 1), prefill_steps=1), iter)
    assert world.costs.absents == 0
    assert world.costs.ticks == world.costs.steps
    assert sum(world.costs.reads.values()) <= world.costs.steps


@pytest.mark.parametrize("policy", ROW_POLICIES)
def test_no_more_is_in_dram_than_fits(policy):
    """At the end of every tick the chunks in DRAM and those on their way are at most its room, and never both."""
    needs = small(64)
    world = World(needs, ROW_POLICIES[policy], rules_for(needs, share=0.4))
    for _ in range(30):
        world.run_tick()
        taken = sum(int(request.present.sum() + request.coming.sum()) for request in world.requests)
        assert taken <= int(0.4 * chunks_in_all(needs))
        assert not any((request.present & request.coming).any() for request in world.requests)


def test_where_all_fits_nothing_is_read():
    """With DRAM for everything no policy has anything to do, and none does anything."""
    needs = small(64)
    for policy in ROW_POLICIES:
        result = result_of(play(needs, policy, rules_for(needs, share=1.0), iter), CHUNK_BYTES)
        assert (result.absents_per_step, result.reads_per_step, result.ticks_per_step) == (0, 0, 1)


@pytest.mark.parametrize("given", [{}, {"topic_steps": 30}], ids=["steady", "topics"])
def test_sparse_misses_less_than_lru(given):
    """Clustered selections, half of it in DRAM: sparse has far fewer absents for no more bytes; its order helps."""
    lru, heat, sparse, future = (cost(policy, 256, **given) for policy in ("lru", "heat", "sparse", "future"))
    assert heat.absents_per_step < lru.absents_per_step
    assert heat.read_bytes_per_step < lru.read_bytes_per_step
    assert sparse.absents_per_step <= 0.8 * lru.absents_per_step
    assert sparse.absents_per_step < heat.absents_per_step
    assert sparse.read_bytes_per_step <= lru.read_bytes_per_step
    assert sparse.ticks_per_step <= 1.1 * lru.ticks_per_step
    assert future.read_bytes_per_step <= sparse.read_bytes_per_step


def test_a_turn_that_begins_waits_less():
    """Requests that pause: the first step of a turn waits less than under LRU, and there are fewer absents."""
    turns = {"turn_steps": 40, "idle_steps": 80, "steps": 640}
    lru, sparse = (cost(policy, 256, **turns) for policy in ("lru", "sparse"))
    assert sparse.absents_per_step < lru.absents_per_step
    assert sparse.ticks_per_turn_start < lru.ticks_per_turn_start


def test_where_nothing_is_cold_sparse_sees_it_and_costs_no_more():
    """Scattered selections: it finds that nothing is cold, and has neither more absents nor more bytes than LRU."""
    given = {"steps": 110, "groups": 1}
    lru, sparse = cost("lru", 1, **given), cost("sparse", 1, **given)
    assert sparse.nothing_is_cold > 0.9
    assert sparse.absents_per_step <= lru.absents_per_step
    assert sparse.read_bytes_per_step <= lru.read_bytes_per_step


def test_equal_runs_are_equal():
    """Two runs of one policy over the same selections give the same figures."""
    needs = small(256)
    runs = [result_of(play(needs, "sparse", rules_for(needs), iter), CHUNK_BYTES) for _ in range(2)]
    assert runs[0] == runs[1]
