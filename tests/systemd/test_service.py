"""The service under a real systemd: start, reload, watchdog, kill, stop under load, socket activation, CPU-only.

The unit is the one in `service/`, installed by `scripts/install`. A drop-in of the test's makes it find the checkout.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.trials.fleet import until
from tests.trials.kill_daemon import CHAIN_BLOCKS, Record, Saver, check

from .world import ROOT, Unavailable, World, launcher

CONFIG = """
[daemon]
uids = [0]
state_directory = "/var/lib/flexkvd"
[dram]
bytes = "16MiB"
segment_bytes = "4MiB"
[ssd]
directory = "/var/lib/flexkvd/ssd"
bytes = "1GiB"
codec = "auto"
"""
WAIT_S = 30
CHAINS = 1_000
SAVERS = count()


class Service:
    """flexkvd, started by that systemd."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.socket = world.path("/run/flexkvd/worker.sock")
        self.config = world.path("/etc/flexkvd/flexkvd.toml")
        world.run("scripts/install", "--without-python")
        self.config.write_text(CONFIG)
        world.drop_in("flexkvd.socket", "90-test", "[Unit]\nDefaultDependencies=no\n")
        world.drop_in("flexkvd.service", "90-test", launcher(world, "tests.trials.launcher"))

    def start(self) -> None:
        if self.world.show("ActiveState") != "active":
            self.world.systemctl("reset-failed")
            self.world.systemctl("start", "flexkvd.service")

    @property
    def log(self) -> str:
        return self.world.path("/run/flexkvd.log").read_text()

    @property
    def restarts(self) -> int:
        return int(self.world.show("NRestarts"))

    def signal(self, name: str) -> None:
        """To the daemon alone, not to its byte workers."""
        self.world.systemctl("kill", "--kill-who=main", f"--signal={name}", "flexkvd.service")

    def wait_logged(self, words: str, times: int = 1) -> None:
        until(lambda: self.log.count(words) >= times, f"the log says {words!r}: {self.log[-2000:]}", WAIT_S, 0.05)

    def wait_restarted(self, restarts: int) -> None:
        """Until it runs again, started once more by systemd."""

        def back() -> bool:
            shown = self.world.systemctl("show", "flexkvd.service", "--property=NRestarts,ActiveState")
            return f"NRestarts={restarts + 1}" in shown and "ActiveState=active" in shown

        until(back, f"systemd starts it again: {self.log[-2000:]}", WAIT_S, 0.1)


class Load:
    """A client that saves to `ssd` on and on, and lives through restarts of the daemon."""

    def __init__(self, service: Service) -> None:
        self.record = Record()
        self._service = service
        self._saver = Saver(service, next(SAVERS), self.record, seed=1)  # type: ignore[arg-type]  # it has a socket
        self._saver.chains_left = CHAINS
        self._saver.go_on.set()
        self._saver.start()

    def wait(self) -> None:
        """Until one more chain is acknowledged."""
        before = self.record.count()
        until(lambda: self.record.count() > before, "saves are acknowledged", WAIT_S)

    def check(self) -> None:
        """End, and read every acknowledged block back: it is a hit with its bytes."""
        self.end()
        assert check(self._service, self.record.chains) == CHAIN_BLOCKS * self.record.count() > 0  # type: ignore[arg-type]

    def end(self) -> None:
        self._saver.end()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("world")
    try:
        with World(folder) as world:
            yield Service(world)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def service(installed: Service) -> Service:
    """It runs, however the test before this one left it."""
    installed.start()
    return installed


@pytest.fixture
def load(service: Service) -> Iterator[Load]:
    load = Load(service)
    load.wait()
    yield load
    load.end()


def test_nothing_of_the_machine_can_be_written_in_there(installed: Service) -> None:
    """The systemd of these tests has no way to the machine's files: it can read the checkout, and not remove it."""
    world = installed.world
    assert world.run("rm", "README.md", check=False).returncode != 0
    assert world.run("touch", "/usr/bin/flexkvd", "/proc/sys/x", check=False).returncode != 0
    assert (ROOT / "README.md").exists()
    assert world.run("stat", "--file-system", "--format=%T", "/tmp", "/run").stdout.split() == ["tmpfs", "tmpfs"]


def test_started_means_ready(service: Service) -> None:
    """`systemctl start` returns when the daemon serves; its status says so in a line, and it runs as its own user."""
    show, path = service.world.show, service.world.path
    assert show("StatusText").startswith("serving: dram")
    process = path(f"/proc/{show('MainPID')}")
    status = (process / "status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "Uid:\t0" not in status
    assert show("LimitMEMLOCK") == "infinity"
    assert path("/var/lib/flexkvd").stat().st_mode & 0o777 == 0o700
    assert path("/run/flexkvd").stat().st_mode & 0o777 == 0o750


def test_a_reload_does_what_may_change_and_refuses_a_wrong_file(service: Service) -> None:
    """A good file is in force after `systemctl reload`; with a wrong one the command fails, and nothing changes."""
    service.config.write_text(CONFIG.replace("[dram]", 'drain_s = 7\nlog_level = "debug"\n[dram]'))
    service.world.systemctl("reload", "flexkvd.service")
    service.wait_logged("reloaded: daemon.drain_s, daemon.log_level changed")
    until(lambda: service.world.show("ActiveState") == "active", "the reload is over", WAIT_S, 0.05)
    service.config.write_text(CONFIG.replace("[dram]", "drain_s = -7\n[dram]"))
    assert service.world.run("systemctl", "reload", "flexkvd.service", check=False).returncode != 0
    assert "drain_s = -7" in service.log
    assert service.log.count("reloaded:") == 1
    service.config.write_text(CONFIG)
    service.world.systemctl("reload", "flexkvd.service")
    service.wait_logged("reloaded:", 2)


def test_a_stuck_loop_is_ended_and_started_again(service: Service) -> None:
    """The watchdog aborts a daemon whose loop stands still; the log says where, and nothing acknowledged is lost."""
    service.world.drop_in("flexkvd.service", "80-watchdog", "[Service]\nWatchdogSec=2\n")
    service.world.systemctl("restart", "flexkvd.service")
    load = Load(service)
    load.wait()
    restarts = service.restarts
    service.signal("RTMIN+0")
    service.wait_restarted(restarts)
    service.world.drop_in("flexkvd.service", "80-watchdog", "")
    assert "Fatal Python error: Aborted" in service.log
    assert "in stand_still" in service.log
    load.wait()
    load.check()


def test_a_killed_daemon_is_started_again(service: Service, load: Load) -> None:
    """After SIGKILL the service is back by itself, and serves what it had acknowledged."""
    restarts = service.restarts
    service.signal("KILL")
    service.wait_restarted(restarts)
    load.wait()
    load.check()


def test_a_stop_under_load_drains(service: Service, load: Load) -> None:
    """`systemctl stop` in the middle of saves ends in success, and nothing acknowledged is lost by it."""
    service.world.systemctl("stop", "flexkvd.service")
    assert service.world.show("Result") == "success"
    assert not service.socket.exists()
    service.world.systemctl("start", "flexkvd.service")
    load.wait()
    load.check()


def test_the_socket_unit_starts_the_daemon_and_keeps_the_socket(service: Service) -> None:
    """With flexkvd.socket the first client starts the daemon, and the socket's file outlives it."""
    systemctl = service.world.systemctl
    systemctl("stop", "flexkvd.service")
    systemctl("start", "flexkvd.socket")
    try:
        assert service.world.show("ActiveState") == "inactive"
        load = Load(service)
        load.wait()
        systemctl("stop", "flexkvd.service")
        assert service.socket.is_socket()
        load.wait()
        until(lambda: service.world.show("ActiveState") == "active", "it is ready", WAIT_S, 0.05)
        load.check()
    finally:
        systemctl("stop", "flexkvd.socket", "flexkvd.service")


def test_the_stricter_drop_in_leaves_a_cpu_only_daemon_all_it_needs(service: Service) -> None:
    """Without devices and without executable memory of its own it saves, compresses, loads, and drains."""
    stricter = (ROOT / "service/systemd/cpu-only.conf").read_text()
    service.world.drop_in("flexkvd.service", "50-cpu-only", stricter)
    service.world.systemctl("restart", "flexkvd.service")
    try:
        assert service.world.show("MemoryDenyWriteExecute") == "yes"
        load = Load(service)
        load.wait()
        load.check()
        service.world.systemctl("stop", "flexkvd.service")
        assert service.world.show("Result") == "success"
    finally:
        service.world.drop_in("flexkvd.service", "50-cpu-only", "")
