"""One run of a policy over what was selected, and its figures. Called by `flexkv replay --selections`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flexkv_py.rows.lfu import LeastFrequentRows
from flexkv_py.rows.lru import LeastRecentRows
from flexkv_py.rows.policy import Reason
from flexkv_py.rows.sparse import SparseRows
from flexkvd.rowreplay.future import Future
from flexkvd.rowreplay.link import Urgency
from flexkvd.rowreplay.needs import RequestNeeds
from flexkvd.rowreplay.world import PolicyMaker, World, WorldRules

ROW_POLICIES: dict[str, PolicyMaker] = {
    "lru": lambda _needs, _progress: LeastRecentRows(),
    "lfu": lambda _needs, _progress: LeastFrequentRows(),
    "heat": lambda _needs, _progress: SparseRows(guesses=False),
    "sparse": lambda _needs, _progress: SparseRows(),
    "future": Future,
}


@dataclass(frozen=True)
class Result:
    """What a run cost per step of one request, all groups together, and how good its guesses were.

    Shares are of 1. `steps` are those counted: the first quarter only warms up.
    """

    steps: int
    absents_per_step: float
    failed_per_step: float
    ticks_per_step: float
    ticks_per_turn_start: float | None
    """Spent on the first step after idle time; None where there was none."""
    hbm_hits: float
    """Of selected rows."""
    dram_hits: float | None
    """Of chunks that a step needs because rows of them are not in HBM, at its first try; None where it needs none."""
    reads_per_step: float
    reads_ahead_per_step: float
    """Of these, before a step failed for them."""
    read_bytes_per_step: float
    written_bytes_per_step: float
    guesses_used: float | None
    """Of what was read ahead and needed or gone by the end: needed. None where nothing was."""
    predicted: dict[str, int] = field(default_factory=dict)
    """Guesses of the policy `sparse` by reason, warming up included; and how many it saw come true."""
    came_true: dict[str, int] = field(default_factory=dict)
    nothing_is_cold: float | None = None
    """Share of the ticks in which `sparse` found that nothing is."""


def play(
    needs: list[RequestNeeds], policy: str, rules: WorldRules, shown: Callable[[Iterator[int]], Iterator[int]]
) -> World:
    """Run to the end. `shown` wraps the steps done so far, for a progress bar."""
    world = World(needs, ROW_POLICIES[policy], rules)
    for _ in shown(_steps(world)):
        pass
    return world


def _steps(world: World) -> Iterator[int]:
    more = True
    while more:
        more = world.run_tick()
        yield world.steps_done


def result_of(world: World, chunk_bytes: int) -> Result:
    """The figures of a finished run."""
    costs, policy = world.costs, world.policy
    steps, reads = costs.steps, sum(costs.reads.values())
    ahead = reads - costs.reads[Urgency.DEMAND]
    sparse = policy if isinstance(policy, SparseRows) else None
    return Result(
        steps=steps,
        absents_per_step=costs.absents / steps,
        failed_per_step=costs.failed / steps,
        ticks_per_step=costs.ticks / steps,
        ticks_per_turn_start=_share(costs.turn_ticks, costs.turns),
        hbm_hits=costs.row_hits / max(1, costs.row_hits + costs.row_misses),
        dram_hits=_share(costs.found, costs.needed),
        reads_per_step=reads / steps,
        reads_ahead_per_step=ahead / steps,
        read_bytes_per_step=reads * chunk_bytes / steps,
        written_bytes_per_step=costs.writes * chunk_bytes / steps,
        guesses_used=_share(costs.guesses_used, costs.guesses_used + costs.guesses_wasted),
        predicted=_by_reason(sparse.predicted) if sparse else {},
        came_true=_by_reason(sparse.came_true) if sparse else {},
        nothing_is_cold=costs.nothing_cold_ticks / max(1, costs.played_ticks) if sparse else None,
    )


def _by_reason(counts: Counter[Reason]) -> dict[str, int]:
    return {reason.value: count for reason, count in counts.items()}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def chunks_in_all(needs: list[RequestNeeds]) -> int:
    """Chunks of all requests at their ends: what a share of DRAM is a share of."""
    return sum(each.blocks * len(each.first_needs) for each in needs)
