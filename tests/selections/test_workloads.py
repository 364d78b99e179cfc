"""What workloads promise: fields of steady variance, turns, topics, groups, and the same selections every time."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.selections import PRESETS, Preset, Selections, Workload
from flexkvd.selections.fields import ScoreField
from flexkvd.selections.generator import top_positions
from flexkvd.selections.statistics import Statistics
from flexkvd.selections.workload import STEPS_MAX

SMALL = Workload(tokens=4096, top_k=256, steps=12)
STATIC, DRIFT, NOISE = Preset(0.9, 1, 0, 0), Preset(0.9, 0, 1, 0), Preset(0.9, 0, 0, 1)


def small(**changes: object) -> Workload:
    return Workload(**{"tokens": 4096, "top_k": 256, "steps": 12, **changes})


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(ours, theirs) -> bool:
    """Whether two runs of selections are equal in everything."""
    return [describe(each) for each in ours] == [describe(each) for each in theirs]


def describe(each) -> tuple:
    return each.step, each.request, each.layer, each.token_count, each.positions.tobytes()


@pytest.mark.parametrize("cluster", [1, 64, 256, 1024])
def test_smoothing_keeps_the_variance_of_static_and_drift(cluster):
    """Smoothed over any run, the static field has a Gumbel's mean and variance, the drift unit variance."""
    static = ScoreField(STATIC, 1 << 19, cluster, chance()).step()
    drift = ScoreField(DRIFT, 1 << 19, cluster, chance()).step()
    spread = 5 * math.sqrt(2 * cluster / (1 << 19))  # of the mean of so many independent runs
    assert static.var() == pytest.approx(math.pi**2 / 6, rel=spread)
    assert static.mean() == pytest.approx(np.euler_gamma, abs=spread)
    assert drift.var() == pytest.approx(1, rel=spread)


def test_neighbours_resemble_each_other_as_far_as_the_cluster_goes():
    """Correlation falls linearly with the distance and ends where the runs do not overlap any more."""
    field = ScoreField(DRIFT, 1 << 20, 64, chance()).step()
    for distance, correlation in ((1, 63 / 64), (16, 0.75), (32, 0.5), (64, 0), (200, 0)):
        assert np.corrcoef(field[:-distance], field[distance:])[0, 1] == pytest.approx(correlation, abs=0.03)


def test_drift_forgets_by_its_correlation_and_noise_at_once():
    """After n steps the drift correlates by ρⁿ and has its first variance; noise has nothing in common."""
    drift = ScoreField(DRIFT, 100_000, 1, chance())
    steps = [drift.step() for _ in range(21)]
    for lag in (1, 5, 20):
        assert np.corrcoef(steps[0], steps[lag])[0, 1] == pytest.approx(0.9**lag, abs=0.02)
    assert steps[-1].var() == pytest.approx(1, abs=0.02)
    noise = ScoreField(NOISE, 100_000, 1, chance())
    assert abs(np.corrcoef(noise.step(), noise.step())[0, 1]) < 0.02


def test_a_topic_switch_draws_one_stretch_afresh():
    """The stretch, round the end of the sequence, forgets; the rest drifts on as if nothing had been."""
    field = ScoreField(Preset(1, 0, 1, 0), 10_000, 1, chance())
    before = field.step()
    field.switch_topic(0.9, 0.3)
    changed = field.step() != before
    assert changed[9000:].all()
    assert changed[:2000].all()
    assert not changed[2000:9000].any()


def test_a_switch_shows_in_the_selections_once():
    """The selections on both sides of a switch have little in common, and after it they are as local as before."""
    workload = small(preset=Preset(0.995, 0, 1, 0), topic_steps=6, topic_share=1.0)
    selected = [each.positions for each in Selections(workload)]
    shared = [np.isin(ours, theirs).mean() for ours, theirs in zip(selected[1:], selected[:-1], strict=True)]
    assert min(shared[:4] + shared[5:10]) > 0.75
    assert shared[4] < 0.6  # the newest 128 tokens of 256 stay


@pytest.mark.parametrize("floor", [-np.inf, 0.0, 1.5, 2.5, np.inf])
def test_the_highest_scores_are_found_whatever_was_guessed(floor):
    """A guess that is too low, good, or too high gives the positions that sorting gives, in ascending order."""
    scores = chance().standard_normal(5000, dtype=np.float32)
    positions = top_positions(scores, 300, np.float32(floor))
    assert positions.tolist() == sorted(np.argsort(scores)[-300:].tolist())
    assert positions.dtype == np.int32


def test_a_sequence_grows_by_one_and_keeps_its_ends():
    """K positions a step, ascending, each once; the first four tokens and the newest are always among them."""
    for step, each in enumerate(Selections(SMALL)):
        assert (each.step, each.token_count, each.positions.size) == (step, 4097 + step, 256)
        assert (np.diff(each.positions) > 0).all()
        assert each.positions[:4].tolist() == [0, 1, 2, 3]
        assert each.positions[-1] == each.token_count - 1


def test_a_sequence_shorter_than_the_bonus_for_recent_tokens_is_selected_from():
    """A handful of tokens is enough, down to a selection of all but one."""
    sizes = [(each.token_count, each.positions.size) for each in Selections(Workload(tokens=5, top_k=5, steps=3))]
    assert sizes == [(6, 5), (7, 5), (8, 5)]


def test_equal_workloads_give_equal_selections():
    """Iterated twice, or made twice: the same; with another seed: others."""
    workload = small(requests=2, groups=2, topic_steps=5, turn_steps=4, idle_steps=2, cluster=16)
    selections = Selections(workload)
    assert same(selections, selections)
    assert same(selections, Selections(workload))
    assert len(list(selections)) == len(selections) == workload.count()
    assert not same(selections, Selections(small(requests=2, groups=2, topic_steps=5, cluster=16, seed=1)))


def test_what_runs_beside_a_request_does_not_touch_its_selections():
    """Request 0, group 0 selects the same alone as among others: chance is drawn per request and group."""
    alone = list(Selections(SMALL))
    among = [each for each in Selections(small(requests=3, groups=2)) if (each.request, each.layer) == (0, 0)]
    assert same(alone, among)
    other = [each for each in Selections(small(requests=3)) if each.request == 1]
    assert np.isin(alone[0].positions, other[0].positions).mean() < 0.6  # the 132 at both ends of 256


@pytest.mark.parametrize(("asked", "low", "high"), [(0.7, 0.70, 0.78), (0.85, 0.85, 0.90), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("cluster", [1, 64])
def test_adjacent_groups_overlap_as_asked(asked, low, high, cluster):
    """A little more than the share of scores they have in common, for both ends of the sequence are always selected."""
    workload = Workload(groups=3, layers_per_group=4, group_overlap=asked, cluster=cluster, steps=8)
    statistics = Statistics(()).add_all(Selections(workload))
    assert statistics.layers == [0, 4, 8]
    slack = 0.05 if cluster > 1 and asked < 1 else 0.0  # few runs are selected from, so chance shows
    assert low - slack <= statistics.summary().group_overlap <= high + slack


def test_idle_requests_leave_a_gap_and_go_on_where_they_were():
    """Turns are staggered over requests; a gap has the length asked for, and the sequence does not grow in it."""
    steps = defaultdict(list)
    order = []
    for each in Selections(small(requests=2, steps=40, turn_steps=6, idle_steps=4)):
        steps[each.request].append(each.step)
        order.append((each.step, each.request))
        assert each.token_count == 4096 + len(steps[each.request])
    assert order == sorted(order)
    assert steps[0] == [step for step in range(40) if step % 10 < 6]
    assert steps[1] == [step for step in range(40) if (step + 5) % 10 < 6]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 1 << 24}, "tokens is 16777216"),
        ({"top_k": 4097}, "top_k is 4097: choose it from 1 to 4096"),
        ({"top_k": 0}, "top_k"),
        ({"steps": STEPS_MAX + 1}, "steps is"),
        ({"cluster": 0}, "cluster"),
        ({"cluster": 5000}, "cluster"),
        ({"requests": 5000}, "requests"),
        ({"groups": 5000}, "groups"),
        ({"groups": 64, "layers_per_group": 65}, "layers_per_group"),
        ({"group_overlap": 1.1}, "group_overlap"),
        ({"group_overlap": math.nan}, "group_overlap"),
        ({"topic_steps": -1}, "topic_steps"),
        ({"topic_share": 2}, "topic_share"),
        ({"turn_steps": 5}, "give both, or neither"),
        ({"idle_steps": 5}, "give both, or neither"),
        ({"seed": -1}, "seed"),
        ({"tokens": 1 << 22, "requests": 4000}, "choose fewer"),
    ],
    ids=str,
)
def test_a_workload_that_cannot_be_is_refused(changes, cause):
    """Out of range, or contradicting itself: a coded error that names the value and what would do."""
    with pytest.raises(FlexKVError, match=cause) as refused:
        small(**changes)
    assert refused.value.code is ErrorCode.BAD_ARGUMENT


@pytest.mark.full
@pytest.mark.parametrize("name", ["poor", "mid", "good"])
@pytest.mark.parametrize("tokens", [65_536, 262_144, 1_048_576])
def test_clustering_and_length_leave_pages_cold(name, tokens):
    """The more scores cluster, the fewer pages a step touches; at a million tokens at most 12 % even without."""
    touched = []
    for cluster in (1, 64, 256, 1024):
        workload = Workload(preset=PRESETS[name], tokens=tokens, cluster=cluster, steps=20)
        touched.append(Statistics(()).add_all(Selections(workload)).summary().pages_touched[1])
    assert touched[1] < 0.75 * touched[0]
    assert max(touched[2:]) < touched[1]
    if tokens == 1_048_576:
        assert max(touched) < 0.12
