"""Who may ask what of the REST API, how much, and over what; and that no secret of the daemon's is ever told."""

import itertools
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.api.app import make_app
from flexkvd.api.description import JSON, describe, operations
from flexkvd.api.table import ApiTable
from flexkvd.api.tls import tls_context
from flexkvd.api.tokens import TOKENS_MAX, Role, Tokens

from .conftest import DaemonThread
from .test_api import over

SPEC = describe(make_app(None))
ROUTES = {f"{method} {path}": operation for method, path, operation in operations(SPEC)}
OPEN = {"GET /healthz", "GET /readyz"}
READ, ADMIN = "reads-only-1", "may-do-all-2"
CREDENTIALS = {"nobody": "", "a stranger": "Bearer wrong", "a reader": f"Bearer {READ}", "an admin": f"Bearer {ADMIN}"}
PLACES = {"tier": "dram", "number": "1", "key": "ab" * 16, "tenant": "blue"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def url_of(daemon: DaemonThread, scheme: str = "http") -> str:
    """The API's address, once somebody listens there."""
    table, end = daemon.config.api, time.monotonic() + 15
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((table.host, table.port)) == 0:
                break
        time.sleep(0.02)
    return f"{scheme}://{table.host}:{table.port}"


def body_of(operation: dict[str, Any]) -> Any:
    """A body as the description's own example has it; None for a route that takes none."""
    return operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("example")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The API of a daemon with a disk, on a loopback port, with a token of each role."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "ssd").mkdir()
    (folder / "tokens").write_text(f"# who watches\nread {READ}\n\nadmin {ADMIN}\n")
    api = {"host": "127.0.0.1", "port": free_port(), "token_file": str(folder / "tokens"), "requests_per_s_max": 1000}
    daemon = DaemonThread(folder, ssd={"directory": str(folder / "ssd"), "bytes": "64MiB"}, api=api)
    with httpx.Client(base_url=url_of(daemon), verify=False, timeout=15) as client:
        yield client
    assert daemon.stop() == 0


@pytest.mark.parametrize(("route", "who"), list(itertools.product(ROUTES, CREDENTIALS)))
def test_every_route_asks_for_its_role(guarded: httpx.Client, route: str, who: str) -> None:
    """Without a token or with a wrong one 401, with a read token 403 unless it reads, else what the route documents."""
    method, path = route.split()
    operation = ROUTES[route]
    headers = {"Authorization": CREDENTIALS[who]} if CREDENTIALS[who] else {}
    with guarded.stream(method, path.format(**PLACES), json=body_of(operation), headers=headers) as answer:
        status, challenge = answer.status_code, answer.headers.get("www-authenticate")
    if who in ("nobody", "a stranger") and route not in OPEN:
        assert (status, challenge) == (401, "Bearer")
    elif who == "a reader" and method != "GET":
        assert status == 403
    else:
        assert status not in (401, 403)
        assert str(status) in operation["responses"]
    if route not in OPEN:
        assert {"401", "403"} <= operation["responses"].keys()


def test_what_is_no_route_asks_for_a_token_too(guarded: httpx.Client) -> None:
    """A stranger does not even learn what there is, but for the dashboard, which has no data; a reader does."""
    assert [guarded.get(path).status_code for path in ("/nowhere", "/openapi.json", "/v1/tiers/")] == [401] * 3
    headers = {"Authorization": f"Bearer {READ}"}
    assert [guarded.get(path, headers=headers).status_code for path in ("/nowhere", "/openapi.json")] == [404, 200]
    assert [guarded.get(path).status_code for path in ("/", "/dashboard/nowhere.js")] == [200, 404]
    wrong = guarded.put("/v1/status", headers={"Authorization": f"Bearer {ADMIN}"})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no token"),
        ("# only words\n", "no token"),
        ("write abc\n", "line 1 is none of"),
        ("admin a b\n", "line 1 is none of"),
        ("read abc\nadmin abc\n", "line 2 has a token that an earlier line has"),
        ("".join(f"read t{number}\n" for number in range(TOKENS_MAX + 1)), f"{TOKENS_MAX + 1} tokens"),
        ("x" * 70_000, "longer than"),
    ],
)
def test_a_token_file_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    """Each way to get it wrong ends the start with a sentence that names the line and never the token."""
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(FlexKVError, match=said) as refused:
        Tokens.read(str(tmp_path / "tokens"))
    assert refused.value.code is ErrorCode.BAD_CONFIG
    assert "abc" not in refused.value.message


def test_one_bare_line_is_one_admin(tmp_path: Path) -> None:
    """The file of earlier releases: its only line is a token that may do everything; the scheme's case is free."""
    (tmp_path / "token").write_text("sesame\n")
    tokens = Tokens.read(str(tmp_path / "token"))
    assert tokens.role_of(b"Bearer sesame") is tokens.role_of(b"bearer  sesame ") is Role.ADMIN
    for header in (b"", b"sesame", b"Basic sesame", b"Bearer", b"Bearer sesam"):
        assert tokens.role_of(header) is None
    assert "sesame" not in repr(tokens)


def test_too_many_requests_are_told_to_wait(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """At five a second ten pass at once, the eleventh is 429 with Retry-After; health is never refused."""
    daemon = start(api={"socket": str(tmp_path / "admin.sock"), "requests_per_s_max": 5})
    with over(daemon.admin) as api:
        statuses = [api.get("/v1/jobs").status_code for _ in range(30)]
        assert statuses[:10] == [200] * 10
        assert 429 in statuses
        while (refused := api.get("/v1/jobs")).status_code == 200:
            pass  # on a machine that stands still for seconds some are let in again
        assert refused.json()["code"] == "throttled"
        assert int(refused.headers["retry-after"]) >= 1
        assert [api.get("/healthz").status_code for _ in range(30)] == [200] * 30


def test_a_body_too_large_is_refused_before_it_is_read(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """413 for an announced size and for a stream that grows beyond it; a good body of the same client still works."""
    daemon = start(api={"socket": str(tmp_path / "admin.sock"), "body_bytes_max": 1024})
    with over(daemon.admin) as api:
        announced = api.post("/v1/flush", content=b" " * 2048)
        streamed = api.post("/v1/flush", content=iter([b" " * 600] * 4))
        for refused in (announced, streamed):
            assert (refused.status_code, refused.json()["code"]) == (413, "message_too_large")
        assert api.post("/v1/flush", json={"to_tier": "ssd"}).json()["code"] == "tier_unavailable"


def test_no_request_completes_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI builds models of included routes when it first looks at them: that is over before the API serves."""
    app, built = make_app(None), list[str]()
    monkeypatch.setattr("fastapi.routing.create_model_field", lambda *_, **field: built.append(str(field)))
    for path, methods in SPEC["paths"].items():
        for method in methods:
            scope = {"type": "http", "method": method.upper(), "path": path, "headers": []}
            assert any(route.matches(scope)[0].value for route in app.routes), path
    assert not built


def test_connections_are_counted_and_the_slow_are_let_go(
    start: Callable[..., DaemonThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth of four is answered 429; one that never finishes its request is closed, and its place is free again."""
    monkeypatch.setattr("flexkvd.api.connection.REQUEST_S_MAX", 0.5)
    daemon = start(api={"socket": str(tmp_path / "admin.sock"), "connections_max": 4})
    with over(daemon.admin) as api:
        assert api.get("/healthz").status_code == 200
    with ExitStack() as open_sockets:
        unfinished = (b"", b"GET", b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST /v1/flush HTTP/1.1\r\nX-")
        slow = [open_sockets.enter_context(speak(daemon, said)) for said in unfinished]
        refused = open_sockets.enter_context(speak(daemon, b"")).recv(4096)
        assert refused.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "throttled"
        assert [each.recv(4096) for each in slow] == [b""] * 4
        garbage = open_sockets.enter_context(speak(daemon, b"\x16\x03\x01 nonsense\r\n\r\n")).recv(4096)
        assert json.loads(garbage.partition(b"\r\n\r\n")[2])["code"] == "bad_argument"


def speak(daemon: DaemonThread, said: bytes) -> socket.socket:
    """A connection to the API on which so much was said."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(str(daemon.admin))
    if said:  # even nothing cannot be said to who was refused, and has hung up already
        connection.sendall(said)
    return connection


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=flexkvd"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return files


def test_tls_serves_who_trusts_the_certificate(
    start: Callable[..., DaemonThread], tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """With a certificate and key the port speaks TLS 1.2 or later to who trusts it, and nothing to who does not."""
    tls = {"tls_certificate_file": str(certificate[0]), "tls_key_file": str(certificate[1])}
    daemon = start(api={"host": "127.0.0.1", "port": free_port(), **tls})
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=url_of(daemon, "https"), verify=trusting, timeout=15) as api:
        assert api.get("/healthz").json() == {"alive": True}
        assert api.get("/v1/status").json()["state"] in ("starting", "ready")
    with httpx.Client(base_url=url_of(daemon, "https"), timeout=15) as api, pytest.raises(httpx.ConnectError):
        api.get("/healthz")


def test_tls_files_are_refused_in_words(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Half a pair, a pair that is none, a file that is not there, TLS on a Unix socket: all before anything starts."""
    (tmp_path / "empty").write_text("")
    for files in ((str(tmp_path / "empty"), str(certificate[1])), (str(certificate[0]), str(tmp_path / "none"))):
        with pytest.raises(FlexKVError, match="name") as refused:
            tls_context(ApiTable(host="127.0.0.1", tls_certificate_file=files[0], tls_key_file=files[1]))
        assert refused.value.code is ErrorCode.BAD_CONFIG
    for named in ({"tls_key_file": "k"}, {"tls_certificate_file": "c", "tls_key_file": "k"}):
        with pytest.raises(FlexKVError, match=r"both for TLS|has no TLS"):
            ApiTable(**named)


def test_nothing_secret_is_told(
    start: Callable[..., DaemonThread],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With tokens and S3 credentials in place, no answer of any route and no line of the log has one of them."""
    secrets = ["api-token-Zq81", "worker-token-Xw52", "AKIDNEVERTOLD", "s3-secret-Vb77", "session-Nm93"]
    (tmp_path / "api").write_text(f"admin {secrets[0]}\n")
    (tmp_path / "worker").write_text(f"{secrets[1]}\n")
    for name, value in zip(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), secrets[2:], strict=True):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3 = {"bucket": "b", "endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "retry_count_max": 0}
    tables: dict[str, Any] = {"daemon": {"token_file": str(tmp_path / "worker")}, "s3": s3}
    api_table = {"socket": str(tmp_path / "admin.sock"), "token_file": str(tmp_path / "api"), "requests_per_s_max": 1e4}
    daemon = start(api=api_table, **tables)
    told = [daemon.call(lambda: repr(daemon.config) + repr(daemon.daemon.operator.__dict__))]
    with over(daemon.admin) as api:
        for header in (f"Bearer {secrets[0]}", f"Bearer {secrets[0]}x", f"Basic {secrets[0]}"):
            for route, operation in ROUTES.items():
                method, path = route.split()
                if path != "/v1/events":
                    headers = {"Authorization": header}
                    answer = api.request(method, path.format(**PLACES), json=body_of(operation), headers=headers)
                    told.append(f"{answer.headers}{answer.text}")
    assert daemon.stop() == 0
    told.append(caplog.text)
    assert len(told) > len(ROUTES)
    assert [(secret, text[:200]) for secret in secrets for text in told if secret in text] == []
