"""`flexkv s3-lifecycle`: the rules it prints, and what a real server makes of them."""

from __future__ import annotations

import json

import pytest

from flexkvd.cli import main
from flexkvd.cli.lifecycle import lifecycle_rules
from tests.tiers.s3_backing import shared_server


def write_config(tmp_path, bucket="flexkv", prefix="", ttl_s=0.0):
    file = tmp_path / "flexkvd.toml"
    place = (
        f'bucket = "{bucket}"\nprefix = "{prefix or tmp_path.name}"\nendpoint_url = "{shared_server().endpoint_url}"\n'
    )
    file.write_text(f"[s3]\n{place}ttl_s = {ttl_s}\n")
    return str(file)


@pytest.mark.parametrize(("ttl_s", "days"), [(1.0, 1), (86_400.0, 1), (86_401.0, 2), (864_000.0, 10)])
def test_a_time_to_live_is_whole_days_at_least_one(ttl_s, days):
    """Never less than was asked for; abandoned uploads end after a day in any case."""
    abort, expire = lifecycle_rules("/a/b/", ttl_s)
    assert (expire["Expiration"], expire["Filter"]) == ({"Days": days}, {"Prefix": "a/b/"})
    assert abort["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert lifecycle_rules("/a/b/", 0.0) == [abort]


def test_rules_are_printed_unless_they_are_to_be_written(tmp_path, capsys):
    """What is printed is what S3 takes; a missing table and a missing bucket are said with a cure."""
    assert main(["s3-lifecycle", "--config", write_config(tmp_path, ttl_s=86_400.0)]) == 0
    assert json.loads(capsys.readouterr().out) == {"Rules": lifecycle_rules(tmp_path.name, 86_400.0)}
    assert main(["s3-lifecycle", "--config", write_config(tmp_path, bucket="nowhere"), "--write"]) == 2
    assert "s3.bucket" in capsys.readouterr().err
    (tmp_path / "flexkvd.toml").write_text("")
    assert main(["s3-lifecycle", "--config", str(tmp_path / "flexkvd.toml")]) == 2
    assert "[s3]" in capsys.readouterr().err


def test_rules_are_written_beside_those_of_others(tmp_path, capsys):
    """A second write replaces the first, and another prefix's rules stay."""
    client = shared_server().client()
    try:
        for prefix, ttl_s in (("other", 86_400.0), ("", 86_400.0), ("", 172_800.0)):
            assert (
                main(["s3-lifecycle", "--config", write_config(tmp_path, prefix=prefix, ttl_s=ttl_s), "--write"]) == 0
            )
        capsys.readouterr()
        rules = client.get_bucket_lifecycle_configuration(Bucket="flexkv")["Rules"]
        days = {rule["Filter"]["Prefix"]: rule["Expiration"]["Days"] for rule in rules if "Expiration" in rule}
        assert days == {"other/": 1, f"{tmp_path.name}/": 2}
    finally:
        client.delete_bucket_lifecycle(Bucket="flexkv")
        client.close()
