"""Pages of other sites reach the API through an operator's browser, and are refused where no token would stop them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.api.foreign import check_own

from .conftest import DaemonThread
from .test_api import over

OURS = [
    (b"localhost", b""),
    (b"LOCALHOST:9450", b"http://localhost:9450"),
    (b"127.0.0.1:9450", b"http://127.0.0.1:9450"),
    (b"127.3.2.1", b"https://127.3.2.1"),
    (b"[::1]:9450", b"http://[::1]:9450"),
    (b"kv.internal:9450", b"http://kv.internal:9450"),
    (b"", b""),
]
FOREIGN_HOSTS = [
    b"rebound.example:9450",
    b"localhost.example",
    b"127.0.0.1.example",
    b"localhost@rebound.example",
    b"10.0.0.1",
    b"[::2]:9450",
    b"[::1",
    b":9450",
    b"\xff",
]
FOREIGN_ORIGINS = [
    b"https://other.example",
    b"null",
    b"http://localhost:3000",
    b"http://localhost:9450.example",
    b"file://localhost:9450",
    b"http://127.0.0.1:9450",
]


@pytest.mark.parametrize(("host", "origin"), OURS)
def test_the_daemons_own_page_may_ask(host: bytes, origin: bytes) -> None:
    """Loopback by any of its names, what [api] host says, and whoever is no browser."""
    check_own(host, origin, "kv.internal")


@pytest.mark.parametrize(
    ("host", "origin"),
    [*((host, b"") for host in FOREIGN_HOSTS), *((b"localhost:9450", origin) for origin in FOREIGN_ORIGINS)],
)
def test_another_sites_page_may_not(host: bytes, origin: bytes) -> None:
    """A name made to lead here, and a page of elsewhere, be it of another port of this machine."""
    with pytest.raises(FlexKVError, match="token_file") as refused:
        check_own(host, origin, "")
    assert refused.value.code is ErrorCode.FORBIDDEN


def test_without_tokens_only_own_pages_are_served(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Under a foreign name nothing is told and nothing begins, from a foreign page neither; health is open to all."""
    daemon = start(api={"socket": str(tmp_path / "admin.sock")})
    rebound, crossing = {"Host": "rebound.example"}, {"Origin": "https://other.example"}
    with over(daemon.admin) as api:
        refused = [
            api.get("/v1/blocks", headers=rebound),
            api.get("/metrics", headers=rebound),
            api.post("/v1/drain", json={"deadline_s": 1}, headers=crossing),
            api.post("/v1/drain", content=b'{"deadline_s": 1}', headers=crossing | {"Content-Type": "text/plain"}),
            api.patch("/v1/config", json={"daemon": {"log_level": "debug"}}, headers=rebound),
        ]
        assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * len(refused)
        assert api.get("/v1/status").json()["state"] == "ready"
        assert api.get("/v1/jobs").json() == {"jobs": []}
        assert api.get("/healthz", headers=rebound | crossing).status_code == 200
        own = api.post("/v1/resume", headers={"Origin": "http://localhost"})
        assert own.status_code == 200, own.text


def test_with_tokens_every_name_is_served(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Behind a proxy with a name of its own: what counts is the token, which no foreign page has."""
    (tmp_path / "tokens").write_text("admin may-do-all\n")
    daemon = start(api={"socket": str(tmp_path / "admin.sock"), "token_file": str(tmp_path / "tokens")})
    elsewhere = {"Host": "kv.example", "Origin": "https://kv.example"}
    with over(daemon.admin) as api:
        assert api.post("/v1/resume", headers=elsewhere).status_code == 401
        assert api.post("/v1/resume", headers=elsewhere | {"Authorization": "Bearer may-do-all"}).status_code == 200
