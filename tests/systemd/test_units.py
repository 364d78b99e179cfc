"""The units and `scripts/install`, by systemd's own judgement of the files; nothing is started."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flexkvd.config import DaemonTable, load_config
from flexkvd.notify import CLOSE_S_MAX

ROOT = Path(__file__).parents[2]
SERVICE, SOCKET = ROOT / "service/flexkvd.service", ROOT / "service/flexkvd.socket"
CPU_ONLY = ROOT / "service/systemd/cpu-only.conf"
EXPOSURE_MAX = 4.0

analyzed = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def settings(path: Path) -> dict[str, list[str]]:
    """Every setting of a unit's file, with its values in order."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: object) -> str:
    done = subprocess.run(
        ["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout + done.stderr


def exposure(unit: Path) -> float:
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", analyze("security", "--offline=true", unit))
    assert found is not None
    return float(found[1])


@analyzed
def test_the_units_are_right_in_systemds_eyes() -> None:
    """`systemd-analyze verify` has nothing to say: it exits with 0 even for a key it does not know."""
    assert analyze("verify", SERVICE, SOCKET) == ""


@analyzed
def test_verify_would_speak_up(tmp_path: Path) -> None:
    """The check above can fail: a misspelt key is printed."""
    wrong = tmp_path / "flexkvd.service"
    wrong.write_text(SERVICE.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", wrong)


@analyzed
def test_the_service_is_little_exposed_and_less_without_a_gpu(tmp_path: Path) -> None:
    """Exposure as systemd reckons it is below the bar, and the drop-in for CPU-only hosts lowers it further."""
    stricter = tmp_path / "flexkvd.service"
    stricter.write_text(SERVICE.read_text().replace("[Install]", CPU_ONLY.read_text() + "[Install]"))
    assert exposure(stricter) < exposure(SERVICE) <= EXPOSURE_MAX


def test_nothing_that_breaks_cuda_is_set() -> None:
    """Devices, generated code, IPC and uids of peers stay as CUDA and workers need them; its nodes are allowed."""
    service = settings(SERVICE)
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "PrivateIPC", "PrivateUsers"} & service.keys()
    assert "PrivateUsers" not in settings(CPU_ONLY)
    allowed = {value.split()[0] for value in service["DeviceAllow"]}
    assert {"char-nvidia*", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= allowed
    assert service["LimitMEMLOCK"] == ["infinity"]


def test_a_drain_fits_into_the_time_to_stop() -> None:
    """What the default drain and closing may take is less than the unit allows; a longer one asks for more itself."""
    (stop_s,) = settings(SERVICE)["TimeoutStopSec"]
    assert DaemonTable().drain_s + CLOSE_S_MAX < float(stop_s)


def test_the_units_and_the_configuration_mean_the_same_places() -> None:
    """Sockets, state and user are called alike in units, configuration, sysusers and tmpfiles."""
    config = load_config(ROOT / "service/systemd/flexkvd.toml")
    assert settings(SOCKET)["ListenStream"] == [config.daemon.socket]
    assert settings(SOCKET)["FileDescriptorName"] == ["worker"]
    assert int(settings(SOCKET)["SocketMode"][0], 8) == config.daemon.socket_mode
    service = settings(SERVICE)
    assert config.daemon.state_directory == f"/var/lib/{service['StateDirectory'][0]}"
    user = service["User"][0]
    assert re.search(rf"^u {user} ", (ROOT / "service/systemd/sysusers.conf").read_text(), re.MULTILINE)
    folder = rf"^d /run/{service['RuntimeDirectory'][0]} {service['RuntimeDirectoryMode'][0]} {user} {user} "
    assert re.search(folder, (ROOT / "service/systemd/tmpfiles.conf").read_text(), re.MULTILINE)


def install(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/install", *arguments],
        env=os.environ | {"DESTDIR": str(root)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_an_installation_can_be_taken_away_again(tmp_path: Path) -> None:
    """Every file goes where systemd looks for it; a second time keeps the configuration, and so does the end."""
    options = ["--without-python", "--cpu-only", "--prefix", "/srv/kv"]
    assert install(tmp_path, *options).returncode == 0
    config = tmp_path / "etc/flexkvd/flexkvd.toml"
    config.write_text("[dram]\n")
    assert install(tmp_path, *options).returncode == 0
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    drop_ins = "etc/systemd/system/flexkvd.service.d"
    assert files == {
        "etc/flexkvd/flexkvd.toml",
        f"{drop_ins}/10-prefix.conf",
        f"{drop_ins}/50-cpu-only.conf",
        "usr/local/lib/systemd/system/flexkvd.service",
        "usr/local/lib/systemd/system/flexkvd.socket",
        "usr/local/lib/sysusers.d/flexkvd.conf",
        "usr/local/lib/tmpfiles.d/flexkvd.conf",
    }
    assert settings(tmp_path / drop_ins / "10-prefix.conf")["Environment"][0].startswith("PATH=/srv/kv/bin:")
    assert install(tmp_path, "--uninstall", "--prefix", "/srv/kv").returncode == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [config]
    assert config.read_text() == "[dram]\n"


@pytest.mark.parametrize("arguments", [["--prefix", "relative"], ["--prefix"], ["--purge"], []])
def test_an_installation_that_cannot_be_right_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """Unknown options, relative paths, and an environment that would have to be moved: exit status 2, no file."""
    assert install(tmp_path, *arguments).returncode == 2
    assert list(tmp_path.iterdir()) == []
