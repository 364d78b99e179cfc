"""The running configuration: origins of values, changes while the daemon runs, and reloads of the file."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.rows.policies import ROW_POLICIES
from flexkvd.config import Config, load_config
from flexkvd.settings import Reload, Settings

from .conftest import DaemonThread
from .rows import until

FILE = """
[planner]
policy = "lru"
s3_hits_min = 2
[ssd]
directory = ["a", "b"]
bytes = "1GiB"
codec_planes = {index = "zstd"}
[s3]
bucket = "b"
endpoint_url = "https://name:secret@server:9000/at@home"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "flexkvd.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def settings(path: Path) -> Settings:
    return Settings(load_config(path))


def test_every_value_has_its_origin(settings: Settings) -> None:
    """A value is told with its default, and whether the file, an operator, or nobody set it."""
    settings.change({"planner": {"clean_ahead": 0.5}})
    tables = settings.describe()
    told = {name: (key["value"], key["default"], key["origin"], key["live"]) for name, key in tables["planner"].items()}
    assert told["policy"] == ("lru", "adaptive", "file", True)
    assert told["clean_ahead"] == (0.5, 0.25, "live", True)
    assert told["admission"] == ("always", "always", "default", True)
    assert tables["ssd"]["directory"]["value"] == ["a", "b"]
    assert (tables["ssd"]["bytes"]["live"], tables["ssd"]["bytes"]["default"]) == (False, None)
    assert tables["ssd"]["codec_planes"] | {"doc": ""} == {
        "value": {"index": "zstd"},
        "default": {},
        "origin": "file",
        "live": False,
        "doc": "",
    }


def test_no_secret_is_shown(settings: Settings) -> None:
    """Credentials in a URL are left out of what is told."""
    assert settings.describe()["s3"]["endpoint_url"]["value"] == "https://…@server:9000/at@home"


def test_a_table_that_is_absent_is_not_told(settings: Settings) -> None:
    """Without its table a tier has no settings, and none can be changed."""
    alone = Settings(Config())
    assert not {"ssd", "s3"} & alone.describe().keys()
    with pytest.raises(FlexKVError, match=r"\[ssd\] is not configured"):
        alone.change({"ssd": {"endurance_bytes_per_day": 1}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"planner": {"clean_ahead": 0.5, "policy": "best"}}, "planner. policy = 'best'"),
        ({"planner": {"clean_ahead": 0.5}, "dram": {"bytes": "1GiB"}}, "dram.bytes changes only with a restart"),
        ({"planner": {"clean_ahead": 0.5, "polcy": "lru"}}, "did you mean 'policy'"),
        ({"planer": {}, "plannr": {"policy": "lru"}}, "did you mean 'planner'"),
        ({"planner": "lru"}, "is no table"),
    ],
)
def test_a_change_is_made_whole_or_not_at_all(settings: Settings, changes: dict[str, dict[str, object]], words: str):
    """One key that cannot be set keeps all of them as they were, and the refusal says what would be right."""
    before = settings.config
    with pytest.raises(FlexKVError, match=words) as caught:
        settings.change(changes)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert settings.config == before


def test_who_acts_on_a_change_can_refuse_it(settings: Settings) -> None:
    """A listener that refuses undoes what those before it did already, and nothing counts as changed."""
    heard: list[float] = []

    def refuse(config: Config) -> None:
        if config.planner.clean_ahead > 0.5:
            raise FlexKVError(ErrorCode.BAD_CONFIG, "too much: choose less")

    settings.listen(lambda config: heard.append(config.planner.clean_ahead))
    settings.listen(refuse)
    assert settings.change({"planner": {"clean_ahead": 0.4}}) == ["planner.clean_ahead"]
    with pytest.raises(FlexKVError):
        settings.change({"planner": {"clean_ahead": 0.6}})
    assert heard == [0.4, 0.6, 0.4]
    assert settings.config.planner.clean_ahead == 0.4


def test_a_reload_does_what_may_change_and_names_the_rest(settings: Settings, path: Path) -> None:
    """Live keys change with the file, others wait for a restart and keep their value until then."""
    path.write_text(FILE.replace('"lru"', '"s3fifo"').replace('"1GiB"', '"2GiB"') + "[dram]\npopulate = false\n")
    assert asyncio.run(settings.reload()) == Reload(("planner.policy",), ("dram.populate", "ssd.bytes"))
    assert settings.config.ssd is not None
    assert (settings.config.planner.policy, settings.config.ssd.bytes) == ("s3fifo", 1 << 30)
    path.write_text(FILE.partition("[s3]")[0])
    assert asyncio.run(settings.reload()) == Reload(("planner.policy",), ("s3",))
    path.write_text(FILE)
    assert asyncio.run(settings.reload()) == Reload((), ())


def test_what_was_set_live_stays_until_the_file_says_something_new(settings: Settings, path: Path) -> None:
    """A reload keeps live values whose keys did not change in the file; None gives a key back to the file."""
    settings.change({"planner": {"policy": "adaptive", "clean_ahead": 0.5, "s3_hits_min": 9}})
    path.write_text(FILE.replace("s3_hits_min = 2", "s3_hits_min = 3"))
    assert asyncio.run(settings.reload()).changed == ("planner.s3_hits_min",)
    planner = settings.config.planner
    assert (planner.policy, planner.clean_ahead, planner.s3_hits_min) == ("adaptive", 0.5, 3)
    assert settings.change({"planner": {"policy": None, "clean_ahead": None}}) == [
        "planner.policy",
        "planner.clean_ahead",
    ]
    planner = settings.config.planner
    assert (planner.policy, planner.clean_ahead) == ("lru", 0.25)


def test_a_file_that_is_refused_changes_nothing(settings: Settings, path: Path) -> None:
    """A reload of a broken file, or without one, says so and keeps everything."""
    before = settings.config
    path.write_text(FILE.replace('"lru"', '"best"'))
    for each in (settings, Settings(Config())):
        with pytest.raises(FlexKVError) as caught:
            asyncio.run(each.reload())
        assert caught.value.code is ErrorCode.BAD_CONFIG
    assert settings.config == before


def test_a_change_reaches_the_planner_that_runs(start: Callable[..., DaemonThread]) -> None:
    """Rules set live are in force in a daemon that serves; it is told no more than what changed."""
    daemon = start()
    state, settings = daemon.parts.planner.state, daemon.parts.settings
    changes = {"planner": {"policy": "s3fifo", "admission": "second-use"}, "row_path": {"policy": "lfu"}}
    assert daemon.call(lambda: settings.change(changes)) == [
        "planner.policy",
        "planner.admission",
        "row_path.policy",
    ]
    daemon.call(lambda: settings.change({"limits": {"retry_after_s": 2.0}}))
    assert (state.config.policy, state.config.ssd_hits_min, state.config.s3_hits_min) == ("s3fifo", 2, 2)
    assert state.config.retry_after_ns == 2_000_000_000
    until(lambda: type(state.rows.policy) is ROW_POLICIES["lfu"])
