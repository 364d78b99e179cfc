"""The command `flexkvd` as a real process: start, signals, refusals, a second daemon."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError

from .conftest import GEOMETRY, Worker

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
COMMAND = [sys.executable, "-m", "flexkvd.main"]
KEY_COUNT = 8


def run(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, *flags, *COMMAND[1:], *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False)


class Process:
    """A daemon process on `folder`; its log is `folder`/log."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.socket = folder / "worker.sock"
        self.log = folder / "log"
        self.config = folder / "flexkvd.toml"
        (folder / "ssd").mkdir(exist_ok=True)
        self.config.write_text(
            f'[daemon]\nsocket = "{self.socket}"\ndrain_s = 5\n[api]\nsocket = "{folder}/admin.sock"\n'
            f'[dram]\nbytes = "16MiB"\nsegment_bytes = "4MiB"\n[ssd]\ndirectory = "{folder}/ssd"\nbytes = "64MiB"\n'
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*COMMAND, "--config", str(self.config)], env=environment, stderr=log)
        self.wait_listening()

    def wait_listening(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.socket)) == 0:
                    return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        pytest.fail(self.log.read_text())

    def wait_logged(self, words: str) -> None:
        end = time.monotonic() + 20
        while words not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    made: list[Process] = []

    def spawn() -> Process:
        made.append(Process(tmp_path))
        return made[-1]

    yield spawn
    for each in made:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


def test_sigterm_drains_and_sigkill_loses_only_what_was_not_acknowledged(spawn: Callable[[], Process]) -> None:
    """Across SIGKILL and SIGTERM, what was acknowledged at `ssd` is loaded again with its bytes."""
    process = spawn()
    with Client(process.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(5)
        expected = worker.block_bytes(KEY_COUNT - 1)
        keys = client.keys(list(range(16 * KEY_COUNT)))
        saved = client.save(keys, worker.pages(0, KEY_COUNT), worker.memory, ack="ssd").wait(timeout_s=10)
        assert saved.length == KEY_COUNT
        boot = client.boot
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        process = spawn()
        end = time.monotonic() + 10
        while True:
            try:
                if client.match(keys).length == KEY_COUNT:
                    break
            except FlexKVError as error:
                if error.code is not ErrorCode.DAEMON_LOST:
                    raise
            assert time.monotonic() < end
            time.sleep(0.02)
        assert client.boot != boot
        loaded = client.load(keys, worker.pages(20, KEY_COUNT), worker.memory).wait(timeout_s=10)
        assert loaded.length == KEY_COUNT
        assert worker.block_bytes(20 + KEY_COUNT - 1) == expected
        assert process.end(signal.SIGTERM) == 0
        assert [message.reason for message in client.poll() if hasattr(message, "reason")]
    assert not process.socket.exists()
    assert "Traceback" not in process.log.read_text()


@pytest.mark.timing
def test_the_socket_answers_within_a_second_of_the_start(spawn: Callable[[], Process]) -> None:
    """From exec to a greeted client, and a signal that comes then is already a drain."""
    begun = time.monotonic()
    process = spawn()
    with Client(process.socket, GEOMETRY):
        assert time.monotonic() - begun < 1.0
        assert process.end(signal.SIGTERM) == 0


def test_sighup_reloads(spawn: Callable[[], Process]) -> None:
    """SIGHUP does what may change, names what waits for a restart, and a file that is refused changes nothing."""
    process = spawn()
    good = process.config.read_text()
    process.config.write_text(good.replace("drain_s = 5", 'drain_s = 3\nlog_level = "debug"\nsocket_mode = 0o600'))
    process.process.send_signal(signal.SIGHUP)
    process.wait_logged("reloaded: daemon.drain_s, daemon.log_level changed; only a restart changes daemon.socket_mode")
    process.config.write_text(good.replace("drain_s = 5", "drain_s = -1"))
    process.process.send_signal(signal.SIGHUP)
    process.wait_logged("the configuration stays as it is")
    with Client(process.socket, GEOMETRY) as client:
        client.ping()
    assert process.end(signal.SIGINT) == 0
    assert "draining for at most 3 s" in process.log.read_text()


def test_a_second_daemon_refuses_to_start(spawn: Callable[[], Process], tmp_path: Path) -> None:
    """On the same directory or the same socket a second daemon exits with status 2 and says who is there."""
    process = spawn()
    same_directory = run("--config", str(process.config))
    assert same_directory.returncode == 2
    assert ErrorCode.DIRECTORY_LOCKED.value in same_directory.stderr
    other = tmp_path / "other.toml"
    other.write_text(
        f'[daemon]\nsocket = "{process.socket}"\n[api]\nsocket = ""\n[dram]\nbytes = "4MiB"\nsegment_bytes = "4MiB"\n'
    )
    same_socket = run("--config", str(other))
    assert same_socket.returncode == 2
    assert ErrorCode.ALREADY_RUNNING.value in same_socket.stderr
    assert str(process.process.pid) in same_socket.stderr
    with Client(process.socket, GEOMETRY) as client:
        client.ping()


@pytest.mark.parametrize("where", ["x" * 120, "missing/worker.sock", "file"])
def test_a_bad_socket_path_is_refused(tmp_path: Path, where: str) -> None:
    """A path too long, in no directory or taken by a file ends the start with a coded error."""
    (tmp_path / "file").write_text("")
    config = tmp_path / "bad.toml"
    config.write_text(f'[daemon]\nsocket = "{tmp_path / where}"\n[dram]\nbytes = "4MiB"\nsegment_bytes = "4MiB"\n')
    ended = run("--config", str(config))
    assert ended.returncode == 2
    assert ErrorCode.BAD_SOCKET_PATH.value in ended.stderr
    assert (tmp_path / "file").exists()


def test_python_o_is_refused() -> None:
    """Without assertions the daemon does not start."""
    ended = run("--check-config", flags=("-O",))
    assert ended.returncode == 2
    assert "python -O" in ended.stderr


def test_check_config_judges_a_file(tmp_path: Path) -> None:
    """A good file is fine, a typo is named with the nearest key."""
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(f'[daemon]\nsocket = "{tmp_path}/w"\n[api]\nsocket = ""\n[dram]\nbytes = "64MiB"\n')
    bad.write_text('[dram]\nbites = "1GiB"\n')
    fine, wrong = run("--check-config", "--config", str(good)), run("--check-config", "--config", str(bad))
    assert (fine.returncode, "is fine" in fine.stdout) == (0, True)
    assert (wrong.returncode, "'bytes'" in wrong.stderr) == (2, True)


def test_a_health_check_asks_the_running_daemon(spawn: Callable[[], Process], tmp_path: Path) -> None:
    """`--healthy` is 0 once the daemon is ready, and 1 with the reason when it is not, or is not there."""
    process = spawn()
    process.wait_logged("serves the REST API")
    process.wait_logged("ready")
    healthy = run("--healthy", "--config", str(process.config))
    assert (healthy.returncode, healthy.stdout) == (0, "ready\n")
    process.end(signal.SIGTERM)
    gone = run("--healthy", "--config", str(process.config))
    assert (gone.returncode, "does not answer" in gone.stdout) == (1, True)
    (tmp_path / "none.toml").write_text('[api]\nsocket = ""\n')
    assert "no REST API" in run("--healthy", "--config", str(tmp_path / "none.toml")).stdout


def test_an_unreachable_s3_does_not_stop_the_start_and_is_shown(tmp_path: Path) -> None:
    """With nobody at the endpoint the daemon serves from DRAM, and readyz says what it waits for."""
    config = tmp_path / "s3.toml"
    config.write_text(
        f'[daemon]\nsocket = "{tmp_path}/worker.sock"\n[api]\nsocket = ""\n'
        '[dram]\nbytes = "4MiB"\nsegment_bytes = "4MiB"\n'
        '[s3]\nbucket = "b"\nendpoint_url = "http://127.0.0.1:1"\nregion = "us-east-1"\n'
    )
    credentials = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.Popen(
        [*COMMAND, "--config", str(config)], env=ENVIRONMENT | credentials, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "s3 is down, the other tiers serve" in line:
            break
    with Client(tmp_path / "worker.sock", GEOMETRY) as client:
        client.ping()
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=20)
    assert process.returncode == 0, "".join(lines) + rest
