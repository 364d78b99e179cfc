"""How `scripts/trials` is called: what would show nothing, or nothing of what was meant, is refused."""

from __future__ import annotations

import pytest

from .run import TRIALS, main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("kill-log --cycles 0", "'0': give a whole number from 1"),
        ("kill-log --cycles -3", "--cycles"),
        ("kill-log --cycles many", "'many': give a whole number"),
        ("kill-log --blocks 5", "unrecognized arguments: --blocks 5"),
        ("kill-log --cyc 5", "unrecognized arguments: --cyc 5"),
        ("damage --seed 1", "unrecognized arguments: --seed 1"),
        ("endurance --amplification 11", "from 0 to 10"),
        ("burst --dram-mib 6", "a multiple of 4"),
        ("nonsense", "invalid choice"),
    ],
)
def test_an_option_that_is_not_the_trials_own_or_shows_nothing_is_refused(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything starts, with exit status 2 and a word on what would do."""
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_every_trial_is_listed_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The list names each trial; the help says where the traces are looked for."""
    assert main(["--list"]) == main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TRIALS)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "FLEXKV_TRACES" in capsys.readouterr().out


def test_every_default_is_one_that_is_accepted() -> None:
    """What runs without options could have been asked for."""
    for trial in TRIALS.values():
        for count in trial.options.values():
            assert count.read(str(count.default)) == count.default
