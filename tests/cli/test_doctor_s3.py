"""`flexkv doctor` and S3: rights, reach and clock, against a real server and a proxy that misbehaves."""

from __future__ import annotations

import pytest

from flexkvd.cli.doctor import findings
from flexkvd.cli.doctor.finding import Finding, Subject, Verdict
from flexkvd.config import parse_config
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.s3_backing import shared_server


def examined(tmp_path, **keys: object) -> dict[str, Finding]:
    place = {"bucket": "flexkv", "prefix": tmp_path.name, "endpoint_url": shared_server().endpoint_url}
    config = parse_config({"s3": place | keys})
    return {finding.check: finding for finding in findings(Subject(config), ("s3",))}


def test_every_right_is_used_once_and_nothing_stays(tmp_path):
    """List, put, get and delete are fine on a real server, the clock agrees, and the probe is gone."""
    seen = examined(tmp_path)
    assert {each.verdict for each in seen.values()} == {Verdict.OK}
    assert set(seen) == {"s3 list", "s3 put", "s3 get", "s3 delete", "clock"}
    client = shared_server().client()
    assert client.list_objects_v2(Bucket="flexkv", Prefix=tmp_path.name).get("KeyCount") == 0
    client.close()


@pytest.mark.parametrize(
    ("variable", "keys", "cure"),
    [
        ("AWS_SECRET_ACCESS_KEY", {}, "credentials"),
        ("", {"bucket": "nowhere"}, "create the bucket"),
        ("", {"endpoint_url": "http://127.0.0.1:9"}, "check that the server runs"),
    ],
)
def test_what_keeps_us_from_the_bucket_is_told_once(tmp_path, monkeypatch, variable, keys, cure):
    """Wrong credentials, no such bucket, nobody there: one failure with its own cure, and no three more behind it."""
    shared_server()
    if variable:
        monkeypatch.setenv(variable, "wrong")
    [failure] = examined(tmp_path, **keys).values()
    assert (failure.check, failure.verdict) == ("s3 list", Verdict.FAILED)
    assert cure in failure.cure


def test_a_missing_right_is_told_by_its_name_and_a_clock_by_its_error(tmp_path):
    """A server that forbids writes: put fails and says so, list is fine. Clocks: a minute warns, half an hour fails."""
    with FaultProxy(shared_server().endpoint_url) as proxy:
        proxy.set(Faults(methods=["PUT"], status=403, code="AccessDenied"))
        seen = examined(tmp_path, endpoint_url=proxy.endpoint_url)
        assert seen["s3 list"].verdict is Verdict.OK
        assert seen["s3 put"].verdict is Verdict.FAILED
        assert "put" in seen["s3 put"].cure
        for off_s, verdict in ((-120.0, Verdict.WARNING), (1800.0, Verdict.FAILED)):
            proxy.set(Faults(date_off_s=off_s))
            assert examined(tmp_path, endpoint_url=proxy.endpoint_url)["clock"].verdict is verdict
        proxy.set(Faults(status=403, code="RequestTimeTooSkewed"))
        [skewed] = examined(tmp_path, endpoint_url=proxy.endpoint_url).values()
        assert (skewed.check, "clock" in skewed.cure) == ("clock", True)
