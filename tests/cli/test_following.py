"""Long work: followed to its end whatever that is, cancelled by Ctrl-C; and who is let in to start it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import main
from flexkvd.jobs import Progress
from tests.cli.conftest import Operated
from tests.cli.terminal import Terminal
from tests.service.conftest import DaemonThread


def started(operated: Operated, work: Callable[[Progress], Awaitable[dict[str, Any]]]) -> str:
    """The id of a job of the daemon's own that does `work`."""
    jobs = operated.daemon.daemon.operator.jobs
    return str(operated.daemon.call(lambda: jobs.start("slow", {}, work)).number)


def test_ctrl_c_asks_the_daemon_to_cancel_and_says_so(operated: Operated) -> None:
    """A job that is followed shows how far it is; interrupted, it is cancelled, and the exit code is 130."""
    cancelled: list[bool] = []

    async def work(progress: Progress) -> dict[str, Any]:
        progress.update(3 << 20, 8 << 20, "bytes")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return {}

    number = started(operated, work)
    with Terminal(["jobs", number, "--follow", "--address", operated.address], 100, 24) as terminal:
        terminal.wait_for("slow (job")
        terminal.wait_for("3.00 MiB/8.00 MiB")
        terminal.press("\x03")
        assert terminal.wait() == 130
        assert f"the daemon is asked to cancel job {number}" in terminal.text
        assert f"job {number} is cancelled" in terminal.text
    assert cancelled == [True]


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        ({"checked": 5, "damaged": 0, "bytes": 1 << 20}, 0, "bytes    1.00 MiB"),
        ({"checked": 5, "damaged": 2, "bytes": 1 << 20}, 1, "damaged  2"),
        (
            FlexKVError(ErrorCode.TIER_UNAVAILABLE, "the tier is down: see its log"),
            1,
            "[tier_unavailable] the tier is down",
        ),
    ],
)
def test_a_job_ends_the_command_as_it_ends_itself(operated: Operated, outcome, code, said) -> None:
    """Done is 0; failed, and damage that was found, are 1, with what is known of it."""

    async def work(progress: Progress) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            raise outcome
        return dict(outcome)

    ended, out, _ = operated.run("jobs", started(operated, work), "--follow")
    assert (ended, said in out) == (code, True), out


def test_who_may_do_what_decides_the_exit_code(tmp_path, capsys, monkeypatch) -> None:
    """No token and a wrong one end with 4, and so does a read token where an admin's is wanted; none is shown."""
    for name, text in (("all", "read reader-1\nadmin chief-1\n"), ("read", "reader-1\n"), ("wrong", "nobody-1\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    address = str(tmp_path / "admin.sock")
    daemon = DaemonThread(tmp_path, ssd=ssd, api={"socket": address, "token_file": str(tmp_path / "all")})
    try:
        monkeypatch.setenv("FLEXKV_ADDRESS", address)
        wait_until_it_answers()
        assert main(["status"]) == 4
        said = capsys.readouterr().err
        assert "[unauthenticated]" in said
        for name, looks, flushes in (("wrong", 4, 4), ("read", 0, 4), ("all", 0, 0)):
            monkeypatch.setenv("FLEXKV_TOKEN_FILE", str(tmp_path / name))
            assert main(["status"]) == looks
            assert main(["flush", "ssd"]) == flushes
        told = capsys.readouterr()
        assert "[forbidden]" in told.err
        assert not any(secret in said + told.out + told.err for secret in ("reader-1", "chief-1", "nobody-1"))
    finally:
        assert daemon.stop() == 0


def test_tls_is_spoken_and_a_foreign_certificate_refused(tmp_path, capsys, unused_port: int) -> None:
    """With the certificate's authority it works; without it the sentence says how to name it."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=flexkvd"
    extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *extra], check=True, capture_output=True)
    api = {"host": "127.0.0.1", "port": unused_port, "tls_certificate_file": str(certificate), "tls_key_file": str(key)}
    daemon = DaemonThread(tmp_path, api=api)
    try:
        address = f"https://127.0.0.1:{unused_port}"
        wait_until_it_answers("--address", address, "--ca-file", str(certificate))
        capsys.readouterr()
        assert main(["status", "--address", address, "--ca-file", str(certificate), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["status"]["ready"] is True
        assert main(["status", "--address", address]) == 3
        assert "--ca-file" in capsys.readouterr().err
        assert main(["status", "--address", address, "--ca-file", str(key)]) == 2
    finally:
        assert daemon.stop() == 0


def wait_until_it_answers(*options: str) -> None:
    """The API comes up behind the worker socket."""
    end = time.monotonic() + 15
    while main(["status", *options]) == 3:
        assert time.monotonic() < end
        time.sleep(0.02)
