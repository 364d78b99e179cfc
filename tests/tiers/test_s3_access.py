"""Getting at a bucket: TLS, certificates, credentials that change; through the tier's own connections."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.byteworkers.child import Call
from flexkv_tiers.s3 import S3Store, objects
from flexkv_tiers.s3.faults import start_error
from flexkv_tiers.s3.messages import Check, Failed, Reply, Trouble
from tests.s3proxy import FaultProxy
from tests.tiers.contract import assert_readable, block
from tests.tiers.s3_backing import patient, shared_server

MIB = 1 << 20
RECORD = (MIB,) * 3


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that nobody vouches for, with its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.with_name("server.pem.key").read_bytes() + path.with_name("server.pem.crt").read_bytes())
    return path


@pytest.fixture(scope="module")
def secure(certificate):
    with FaultProxy(shared_server().endpoint_url, certificate) as proxy:
        yield proxy


def run(config, frames, scene):
    async def life():
        store = S3Store(config, frames.arena)
        try:
            await store.start()
            await scene(store)
        finally:
            await store.close()

    asyncio.run(life())


def test_records_travel_over_tls(frames, tmp_path, secure, certificate):
    """With the certificate trusted, uploads and downloads of several chunks go over TLS, bodies unsigned."""
    config = replace(
        patient(tmp_path.name), endpoint_url=secure.endpoint_url, ca_bundle=str(certificate), sign_payload=None
    )
    assert not config.signs_payload

    async def scene(store):
        for number in range(2):
            await store.write(block(number), frames.fill(block(number), RECORD))
        for number in range(2):
            await assert_readable(store, frames, block(number), 0, RECORD)
        assert store.status()["retries"] == 0

    run(config, frames, scene)


def test_a_certificate_that_is_not_trusted_names_the_setting(frames, tmp_path, secure):
    """Without it the tier does not start, and the error says where to name it."""

    async def scene(store):
        raise AssertionError("it started")

    config = replace(patient(tmp_path.name), endpoint_url=secure.endpoint_url)
    with pytest.raises(FlexKVError, match=r"s3\.ca_bundle") as caught:
        run(config, frames, scene)
    assert caught.value.code is ErrorCode.S3_UNREACHABLE


def ask(handler, request):
    return [msgspec.msgpack.decode(raw, type=Reply) for raw in handler(msgspec.msgpack.encode(request), Call(1))]


def test_credentials_that_were_replaced_are_found(frames, tmp_path, monkeypatch):
    """After a denial the credentials file is read again: the right ones work without a restart."""
    config, file, right = patient(tmp_path.name), tmp_path / "credentials", shared_server().environment

    def write(secret):
        key_id = right["AWS_ACCESS_KEY_ID"]
        file.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setattr(objects, "REOPEN_S_MIN", 0.0)
    handler = objects.Objects(config, frames.arena)
    [failed] = ask(handler, Check())
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.DENIED
    write("wrong")
    [failed] = ask(handler, Check())
    assert failed.trouble is Trouble.DENIED
    write(right["AWS_SECRET_ACCESS_KEY"])
    assert ask(handler, Check()) == []
    handler.close()


def test_a_web_server_is_told_as_no_s3_server(frames, tmp_path):
    """200 and a page, as any web server answers: no listing, so no S3, whatever its status says."""
    page = b"<!DOCTYPE html><title>Welcome</title>"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        handler = objects.Objects(
            replace(patient(tmp_path.name), endpoint_url=f"http://127.0.0.1:{server.server_port}"), frames.arena
        )
        [failed] = ask(handler, Check())
        handler.close()
        server.shutdown()
        thread.join()
    assert failed.trouble is Trouble.FOREIGN
    assert "Welcome" in failed.detail
    assert ErrorCode.S3_UNREACHABLE in str(start_error(failed, "s3://b/p"))


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"endpoint_url": "http://a..b:9"}, Trouble.REFUSED),
        ({"endpoint_url": "http://127.0.0.1:9"}, Trouble.UNREACHABLE),
        ({"endpoint_url": "https://127.0.0.1:9", "ca_bundle": "/nowhere/ca.pem"}, Trouble.CERTIFICATE),
    ],
    ids=["no URL", "no server", "no CA file"],
)
def test_settings_that_cannot_work_are_answers_and_no_bugs(frames, tmp_path, change, trouble):
    """What botocore or the system says of a wrong setting comes back as a trouble with a sentence."""
    handler = objects.Objects(replace(patient(tmp_path.name), **change), frames.arena)
    [failed] = ask(handler, Check())
    assert isinstance(failed, Failed)
    assert failed.trouble is trouble, failed
    handler.close()
