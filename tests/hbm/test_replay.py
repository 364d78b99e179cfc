"""A step that met absent rows: when it runs again, what it asks for, when it is given up."""

import random

import pytest

from flexkv_tiers.hbm.replay import Replays, StepState, Verdict, agree_oks, agree_versions


def test_a_step_without_absents_is_done():
    """An ok step counts at once and asks for nothing."""
    step = Replays()
    assert step.judge(True, []) is Verdict.DONE
    assert step.take_asks() == []
    assert step.state is StepState.READY


def test_a_step_is_replayed_once_when_its_pages_are_in():
    """An absent row makes the step wait for exactly its pages; the replay that succeeds ends the story."""
    step = Replays()
    assert step.judge(False, [(3, 0), (9, 0), (3, 0)]) is Verdict.REPLAY
    assert step.take_asks() == [(3, 0), (9, 0)]
    step.granted([(3, 0), (4, 0)])
    assert step.state is StepState.WAITING
    step.granted([(9, 0)])
    assert step.state is StepState.READY
    assert step.judge(True, []) is Verdict.DONE
    assert step.replay_count == 0


def test_groups_may_be_absent_in_turn():
    """Each replay may meet its absence one group later; what came in before is still waited for, not asked again."""
    step, groups = Replays(replays_max=8), 8
    for group in range(groups):
        assert step.judge(False, [(1, group)]) is Verdict.REPLAY
        assert step.take_asks() == [(1, group)]
        step.granted([(1, group)])
    assert step.judge(True, []) is Verdict.DONE


def test_a_page_that_leaves_again_is_asked_for_again():
    """A page revoked between its coming and the replay is asked for anew, and the step waits for it."""
    step = Replays()
    step.judge(False, [(3, 0), (5, 0)])
    step.take_asks()
    step.granted([(3, 0), (5, 0)])
    step.revoked([(3, 0), (77, 0)])
    assert step.state is StepState.WAITING
    assert step.take_asks() == [(3, 0)]
    step.granted([(3, 0)])
    assert step.state is StepState.READY


def test_replays_end():
    """A step that never succeeds is given up after its limit: nothing goes round for ever."""
    step = Replays(replays_max=3)
    verdicts = []
    while step.state is StepState.READY:
        verdicts.append(step.judge(False, [(0, 0)]))
        step.granted([(0, 0)])
    assert verdicts == [Verdict.REPLAY] * 3 + [Verdict.GIVE_UP]
    assert step.take_asks() == []


def test_a_refusal_gives_up_only_the_step_that_rests_on_it():
    """A refusal ends the waiting at once; one that comes when the step has succeeded, or twice, changes nothing."""
    step = Replays()
    step.judge(False, [(2, 0)])
    step.granted([(2, 0)])
    step.judge(True, [])
    assert not step.refused()
    step.judge(False, [(3, 0)])
    assert step.refused()
    assert not step.refused()
    assert step.state is StepState.GIVEN_UP
    step.granted([(3, 0)])  # too late: the decision stands
    assert step.state is StepState.GIVEN_UP
    step.made_resident()
    assert step.state is StepState.READY


def test_another_daemon_is_asked_for_everything():
    """What was asked of a daemon that is gone is asked of the next, whether it had come in or not."""
    step = Replays()
    step.judge(False, [(3, 0), (5, 0)])
    step.take_asks()
    step.granted([(3, 0)])
    step.ask_again()
    assert step.take_asks() == [(3, 0), (5, 0)]
    assert step.state is StepState.WAITING


def test_another_ranks_absence_is_replayed_without_asking():
    """The rank that had all rows replays with the one that had not, and asks for nothing."""
    near, far = Replays(), Replays()
    [ok] = agree_oks([[True], [False]])
    assert not ok
    assert near.judge(ok, []) is Verdict.REPLAY
    assert far.judge(ok, [(2, 1)]) is Verdict.REPLAY
    assert near.state is StepState.READY
    assert far.state is StepState.WAITING  # the instance steps when every rank is ready
    assert near.take_asks() == []


def test_ranks_switch_to_the_newest_version_all_have():
    """Ranks agree on the smallest of the versions received, request by request."""
    assert agree_versions([[4, 7, 2], [5, 6, 2]]) == [4, 6, 2]
    with pytest.raises(AssertionError):
        agree_versions([[1], [1, 2]])


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_grants_and_revokes_hangs_a_step(seed):
    """As long as what is asked for comes in some time, every step ends within its limit of replays."""
    chance = random.Random(seed)
    step, owed = Replays(replays_max=6), []
    for _ in range(400):
        if step.state is StepState.READY:
            absents = [(chance.randrange(8), chance.randrange(3)) for _ in range(chance.randrange(4))]
            ok = not absents and chance.random() < 0.9
            if step.judge(ok, absents) is Verdict.GIVE_UP:
                step.made_resident()
        elif owed and chance.random() < 0.5:
            step.revoked([(chance.randrange(8), chance.randrange(3))])
        owed += step.take_asks()
        chance.shuffle(owed)
        step.granted(owed[:2])
        del owed[:2]
        assert step.state is StepState.READY or owed, "the step waits for something nobody was asked for"
        assert step.replay_count <= 6
