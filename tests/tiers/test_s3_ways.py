"""The way to the server: a scheme that is not spoken there, and proxies that the environment names."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.byteworkers.child import Call
from flexkv_tiers.s3 import S3Store, faults, objects
from flexkv_tiers.s3.messages import Check, Failed, Reply, Trouble
from flexkv_tiers.s3.proxy import ProxyRefused, proxy_of
from tests.s3proxy import FaultProxy
from tests.tiers.contract import assert_readable, block
from tests.tiers.s3_backing import patient, shared_server
from tests.tiers.test_s3_access import certificate  # noqa: F401 - a fixture

RECORD = (64 * 1024,) * 2
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


class ForwardProxy:
    """An HTTP proxy: tunnels for CONNECT, and passes on what asks for a whole URL. Notes the heads it got."""

    def __init__(self):
        self.heads = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := client.recv(65536)):
                return client.close()
            head += piece
        self.heads.append(head.decode("latin-1"))
        method, target, _ = head.decode("latin-1").split(" ", 2)
        place = urlsplit(f"//{target}" if method == "CONNECT" else target)
        server = socket.create_connection((place.hostname, place.port))
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server.sendall(head)
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        client.close()
        server.close()
        return None


def _pump(source, target):
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def forward(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    proxy = ForwardProxy()
    yield proxy
    proxy.close()


def run(config, frames):
    """Write, read and delete one record in one life of a store."""

    async def life():
        store = S3Store(config, frames.arena)
        try:
            await store.start()
            await store.write(block(1), frames.fill(block(1), RECORD))
            await assert_readable(store, frames, block(1), 0, RECORD)
            await store.drop(block(1), 0)
            assert store.status()["retries"] == 0
        finally:
            await store.close()

    asyncio.run(life())


def ask(config, frames):
    handler = objects.Objects(config, frames.arena)
    try:
        return [msgspec.msgpack.decode(raw, type=Reply) for raw in handler(msgspec.msgpack.encode(Check()), Call(1))]
    finally:
        handler.close()


def test_tls_to_a_server_of_plain_http_names_the_setting(frames, tmp_path):
    """An https:// URL of a server that speaks http is told as that, not as a certificate, and refuses the start."""
    url = shared_server().endpoint_url.replace("http://", "https://")
    config = replace(patient(tmp_path.name), endpoint_url=url)
    with pytest.raises(FlexKVError, match=r"s3\.endpoint_url with http://") as caught:
        run(config, frames)
    assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize(
    "answer", [b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.0 400 Bad Request\r\n\r\nan HTTPS server"]
)
def test_plain_http_to_a_server_of_tls_names_the_setting(frames, tmp_path, answer):
    """http:// at a TLS port, which answers with an alert or with a sentence of its own: the same trouble."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            client, _ = listener.accept()
            client.recv(65536)
            client.sendall(answer)
            client.close()

        threading.Thread(target=refuse, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        [failed] = ask(replace(patient(tmp_path.name), endpoint_url=url), frames)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.SCHEME, failed
    assert "with https:// if it speaks TLS" in faults.explained(failed)


def test_every_trouble_is_told_with_a_cure():
    """Whatever boto3 or the system says, the sentence goes on with what to look at; each trouble has a fault, too."""
    for trouble in Trouble:
        assert faults.explained(Failed(trouble, "raw")).removeprefix("raw: ")
        assert trouble in faults.FAULT_OF


def test_plain_requests_go_by_the_proxy_of_the_environment(frames, tmp_path, forward, monkeypatch):
    """HTTP_PROXY carries our own requests and boto3's, with its password; NO_PROXY takes the server out of it."""
    config = replace(patient(tmp_path.name), pack_bytes=0)
    monkeypatch.setenv("HTTP_PROXY", forward.url.replace("http://", "http://user:p%40ss@"))
    run(config, frames)
    methods = {head.split(" ", 1)[0] for head in forward.heads}
    assert {"GET", "POST"} <= methods, "checks and reads are ours, batched deletes boto3's"
    basic = f"Proxy-Authorization: Basic {base64.b64encode(b'user:p@ss').decode()}"
    assert all(basic in head for head in forward.heads)
    before = len(forward.heads)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    run(config, frames)
    assert len(forward.heads) == before


def test_tls_goes_through_a_tunnel(frames, tmp_path, forward, monkeypatch, certificate):  # noqa: F811
    """HTTPS_PROXY is asked to CONNECT and sees nothing else; the certificate is the server's own."""
    monkeypatch.setenv("HTTPS_PROXY", forward.url)
    with FaultProxy(shared_server().endpoint_url, certificate) as secure:
        config = replace(
            patient(tmp_path.name), endpoint_url=secure.endpoint_url, ca_bundle=str(certificate), sign_payload=None
        )
        run(config, frames)
        assert forward.heads
        assert all(head.startswith(f"CONNECT {urlsplit(secure.endpoint_url).netloc} ") for head in forward.heads)


def test_a_proxy_that_cannot_be_used_is_named(frames, tmp_path, forward, monkeypatch):
    """One that is not there, and one of a kind we do not speak: the error names the variable."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    [failed] = ask(patient(tmp_path.name), frames)
    assert (failed.trouble, "by the proxy 127.0.0.1:9" in failed.detail) == (Trouble.UNREACHABLE, True)
    monkeypatch.setenv("HTTP_PROXY", "https://127.0.0.1:9")
    with pytest.raises(ProxyRefused, match="NO_PROXY"):
        proxy_of("http://somewhere/")
    for junk in ("::junk::", "http://", "http://host:port"):
        monkeypatch.setenv("HTTP_PROXY", junk)
        with pytest.raises(ProxyRefused, match=r"^HTTP_PROXY or HTTPS_PROXY .*write http://host:port"):
            proxy_of("http://somewhere/")
