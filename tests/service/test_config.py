"""The configuration: what is accepted, and what every refusal tells."""

import tomllib
from dataclasses import MISSING
from pathlib import Path

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.rows.table import RowLimits
from flexkv_tiers.hbm.replay import REPLAYS_MAX
from flexkvd.config import TABLES, Config, describe, load_config, parse_config, read_token
from flexkvd.planning import planner_config
from flexkvd.stores import s3_config
from flexkvd.toml_tables import keys_of

EXAMPLE = Path(__file__).parents[2] / "service" / "flexkvd.example.toml"


def refusal(values: dict[str, object]) -> str:
    with pytest.raises(FlexKVError) as caught:
        parse_config(values)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    return caught.value.message


def test_the_example_names_every_key_and_states_the_defaults() -> None:
    """The example file parses, lists each key of each table, and its values are the defaults where there are any."""
    given = tomllib.loads(EXAMPLE.read_text())
    assert list(given) == list(TABLES)
    config = load_config(EXAMPLE)
    for name, cls in TABLES.items():
        assert list(given[name]) == [each.name for each, _ in keys_of(cls)], name
        for each, _ in keys_of(cls):
            if each.default is not MISSING:
                assert getattr(getattr(config, name), each.name) == each.default, f"{name}.{each.name}"


def test_every_key_is_described() -> None:
    """Documentation can be made of `describe`: each key has a table, a kind and a sentence."""
    keys = list(describe())
    assert len({(key.table, key.name) for key in keys}) == len(keys)
    assert all(key.doc.endswith(".") and key.kind for key in keys)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dran": {}}, ["[dran]", "'dram'"]),
        ({"dram": {"byte": 1}}, ["[dram]", "'byte'", "'bytes'"]),
        ({"dram": {"zzz": 1}}, ["[dram]", "'zzz'", "segment_bytes"]),
        ({"dram": {"bytes": "4GB"}}, ["[dram]", "bytes", "'4GB'", "1MiB to 8TiB"]),
        ({"dram": {"bytes": 7}}, ["bytes = 7", "1MiB to 8TiB"]),
        ({"dram": {"populate": 1}}, ["populate = 1", "true or false"]),
        ({"dram": {"bytes": "65MiB"}}, ["multiple of segment_bytes"]),
        ({"limits": {"sessions_max": True}}, ["sessions_max = True", "whole number from 1 to"]),
        ({"daemon": {"drain_s": float("nan")}}, ["drain_s", "number from 0 to"]),
        ({"daemon": {"uids": [1, "x"]}}, ["uids", "list of at most"]),
        ({"planner": {"policy": "mru"}}, ["policy = 'mru'", '"lru"']),
        ({"ssd": {"directory": "/x"}}, ["[ssd] needs bytes"]),
        ({"s3": {}}, ["[s3] needs bucket"]),
        ({"s3": {"bucket": ""}}, ["[s3] bucket = ''", "not empty"]),
        ({"ssd": {"directory": "", "bytes": "1GiB"}}, ["[ssd] directory = ''", "not empty"]),
        ({"daemon": {"socket": ""}}, ["[daemon] socket = ''", "not empty"]),
        ({"s3": {"bucket": "b", "codec": "gzip"}}, ["codec = 'gzip'", '"planes"', '"auto"']),
        ({"s3": {"bucket": "b", "codec_planes": {"kv": "gzip"}}}, ["codec_planes", "table of at most 64", '"zstd"']),
        ({"s3": {"bucket": "b", "codec_planes": "zstd"}}, ["codec_planes = 'zstd'", "table of at most 64"]),
        ({"s3": {"bucket": "b", "codec_planes": {"kv": 3}}}, ["codec_planes", "table of at most 64"]),
        ({"s3": {"bucket": "b", "codec_planes": {str(n): "none" for n in range(65)}}}, ["at most 64 names"]),
        ({"port": 3}, ["there is no table"]),
        ({"api": 3}, ["[api]", "table"]),
        ({"api": {"host": "0.0.0.0"}}, ["0.0.0.0", "token_file"]),
    ],
)
def test_a_refusal_names_the_key_and_the_cure(values: dict[str, object], words: list[str]) -> None:
    """What is not accepted is named with its table, its value, and what would be accepted."""
    message = refusal(values)
    assert [word for word in words if word not in message] == []


def test_sizes_are_bytes_or_strings_with_units() -> None:
    """4 GiB can be written three ways."""
    for size in (4 << 30, "4GiB", "4096 MiB"):
        assert parse_config({"dram": {"bytes": size}}).dram.bytes == 4 << 30


def test_codecs_are_set_by_tier_and_plane() -> None:
    """A table under the tier's own names planes; S3 compresses what pays by default, the SSD nothing."""
    text = """
    [ssd]
    directory = "/x"
    bytes = "1GiB"
    [s3]
    bucket = "b"
    [s3.codec_planes]
    index = "zstd"
    """
    config = parse_config(tomllib.loads(text))
    assert config.ssd is not None
    assert config.s3 is not None
    assert (config.ssd.codec, config.s3.codec, config.s3.codec_planes) == ("none", "auto", (("index", "zstd"),))


def test_a_tier_without_its_table_is_absent() -> None:
    """No [ssd] and no [s3] leave DRAM alone; each table adds its tier."""
    ssd: dict[str, object] = {"directory": "/x", "bytes": "1GiB"}
    assert planner_config(Config()).tiers == (Tier.DRAM,)
    assert planner_config(parse_config({"ssd": ssd})).tiers == (Tier.DRAM, Tier.SSD)
    assert planner_config(parse_config({"s3": {"bucket": "b"}})).tiers == (Tier.DRAM, Tier.S3)


def test_every_limit_of_the_planner_can_be_set() -> None:
    """No field of the planner's configuration is left at a default of its own."""
    untouched = PlannerConfig()
    limits = {"hold_s_max": 7.0, "retry_after_s": 0.5} | {
        name: "1MiB" if "_bytes_" in name else 0.25 if "_share_" in name else 3
        for name in vars(Config().limits)
        if name.endswith("_max") and hasattr(untouched, name)
    }
    told = planner_config(parse_config({"limits": limits}))
    for name in PlannerConfig.__slots__:
        if name.endswith("_max"):
            assert getattr(told, name) != getattr(untouched, name), name
    assert told.retry_after_ns == 500_000_000


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and broken TOML are all coded errors that name the file."""
    broken = tmp_path / "broken.toml"
    broken.write_text("[dram\n")
    for path in (tmp_path / "missing.toml", tmp_path, broken):
        with pytest.raises(FlexKVError) as caught:
            load_config(path)
        assert caught.value.code is ErrorCode.BAD_CONFIG
        assert str(path) in caught.value.message


def test_a_token_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    """Other lines are ignored; an empty or missing file is refused."""
    token = tmp_path / "token"
    token.write_text("secret\nnot this\n")
    assert read_token(str(token), "[api] token_file") == "secret"
    assert read_token("", "[api] token_file") == ""
    token.write_text("\n")
    for path in (token, tmp_path / "missing"):
        with pytest.raises(FlexKVError, match="token_file"):
            read_token(str(path), "[api] token_file")


@pytest.mark.parametrize(
    ("word", "url", "signs"),
    [
        ("auto", "http://host", True),
        ("auto", "https://host", False),
        ("auto", "", False),
        ("always", "https://host", True),
        ("never", "http://host", False),
    ],
)
def test_uploads_are_signed_over_their_bytes_only_where_that_is_asked_for(word: str, url: str, signs: bool) -> None:
    """`auto` signs bodies where no TLS guards them; the other words overrule it."""
    table = parse_config({"s3": {"bucket": "b", "endpoint_url": url, "sign_payload": word}}).s3
    assert table is not None
    assert s3_config(table).signs_payload is signs


def test_a_step_may_be_replayed_as_often_as_its_worker_would() -> None:
    """A daemon that gave up earlier would refuse steps of deep models, each replay of which gets a group further."""
    assert Config().row_path.absent_replays_max >= REPLAYS_MAX
    assert RowLimits().absent_replays_max >= REPLAYS_MAX
