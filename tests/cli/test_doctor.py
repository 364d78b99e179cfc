"""`flexkv doctor`: each check on a machine that fails it, made so for real wherever that can be done here."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flexkvd.cli import main
from flexkvd.cli.doctor import device, findings, kernel
from flexkvd.cli.doctor.finding import Finding, Subject, Verdict
from flexkvd.config import Config, parse_config
from tests.cli.conftest import Operated
from tests.tiers.small_disk import mounted, switchable

GIB = 1 << 30
FORBIDDEN = r"""
import ctypes, struct, sys
from flexkvd.cli import main

filters = (0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in filters))
pointer = ctypes.create_string_buffer(struct.pack("@HP", len(filters), ctypes.addressof(program)))
system = ctypes.CDLL(None)
assert system.prctl(38, 1, 0, 0, 0) == 0 and system.prctl(22, 2, pointer, 0, 0) == 0
sys.exit(main(sys.argv[1:]))
"""
"""A process that forbids itself io_uring_setup by a seccomp filter, as containers do."""

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Card", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 99; return 0; }
"""
"""A driver's library with one device that cannot pin a read-only mapping, like PCIe cards."""


def config_of(tmp_path: Path, **tables: dict[str, object]) -> Config:
    values = {
        "daemon": {"socket": str(tmp_path / "worker.sock")},
        "api": {"socket": str(tmp_path / "admin.sock")},
        "dram": {"bytes": "64MiB"},
    }
    return parse_config({name: values.get(name, {}) | tables.get(name, {}) for name in values | tables})


def found(subject: Subject, *parts: str) -> dict[str, Finding]:
    """Findings by the first word of their check."""
    return {finding.check.partition(" /")[0]: finding for finding in findings(subject, parts)}


def lay_out(root: Path, **files: str) -> Path:
    """A machine's files: `proc__meminfo` is proc/meminfo."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_a_fit_machine_passes_and_the_report_is_stable(tmp_path, capsys):
    """Nothing failed is exit code 0; the object has a line for each check and the counts of all verdicts."""
    file = tmp_path / "flexkvd.toml"
    file.write_text(
        f'[daemon]\nsocket = "{tmp_path}/worker.sock"\n[api]\nsocket = "{tmp_path}/admin.sock"\n'
        f'[dram]\nbytes = "64MiB"\n[ssd]\ndirectory = "{tmp_path}/ssd"\nbytes = "64MiB"\n'
    )
    assert main(["doctor", "--config", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"config", "daemon_pid", "checks", "counts"}
    assert {"check", "verdict", "detail", "cure"} == set(answer["checks"][0])
    assert answer["counts"]["failed"] == 0
    assert answer["counts"]["ok"] >= 8
    assert not list(tmp_path.glob("ssd/*")), "a probe was left behind"
    assert main(["doctor", "--config", str(file)]) == 0
    assert "→" in (said := capsys.readouterr().out) or "warning" not in said


def test_a_kernel_that_forbids_io_uring_is_told_with_what_it_costs(tmp_path):
    """Refused by seccomp: a warning with `auto`, a failure and exit code 1 where it is asked for by name."""
    for engine, code in (("auto", 0), ("io_uring", 1)):
        file = tmp_path / "flexkvd.toml"
        file.write_text(f'[ssd]\ndirectory = "{tmp_path}"\nbytes = "64MiB"\nio = "{engine}"\n')
        command = [sys.executable, "-c", FORBIDDEN, "doctor", "--only", "kernel", "--config", str(file)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (ended.returncode, ended.stderr) == (code, "")
        assert "forbidden here" in ended.stdout
        assert "seccomp" in ended.stdout


@pytest.mark.parametrize(("files", "verdict"), [(64, Verdict.FAILED), (600, Verdict.WARNING)])
def test_too_few_open_files_are_counted_against_the_configuration(tmp_path, files, verdict):
    """A hard limit below what the tiers need is a failure, one below what all clients need a warning."""
    file = tmp_path / "flexkvd.toml"
    file.write_text('[dram]\nbytes = "256MiB"\n')
    command = ["prlimit", f"--nofile={files}:{files}", sys.executable, "-c"]
    command += ["import sys; from flexkvd.cli import main; sys.exit(main(sys.argv[1:]))"]
    command += ["doctor", "--only", "limits", "--config", str(file), "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    [check] = [each for each in json.loads(ended.stdout)["checks"] if each["check"] == "open files"]
    assert check["verdict"] == verdict.value
    assert "LimitNOFILE" in check["cure"]


def test_the_limits_of_a_running_daemon_count_not_those_of_the_shell(tmp_path):
    """With a daemon, its own /proc/PID/limits are read; locked memory matters only where there is a GPU."""
    limits = "Limit                     Soft Limit           Hard Limit           Units\n"
    limits += "Max open files            64                   64                   files\n"
    limits += "Max locked memory         65536                65536                bytes"
    root = lay_out(tmp_path / "root", proc__42__limits=limits)
    subject = Subject(config_of(tmp_path), None, 42, root)
    assert found(subject, "limits")["open files"].verdict is Verdict.FAILED
    assert "process 42" in found(subject, "limits")["open files"].detail
    assert found(subject, "limits")["memlock"].verdict is Verdict.OK
    lay_out(root, dev__nvidiactl="")
    memlock = found(subject, "limits")["memlock"]
    assert memlock.verdict is Verdict.WARNING
    assert "LimitMEMLOCK" in memlock.cure


@pytest.mark.parametrize(
    ("limit", "verdict"), [("33554432", Verdict.FAILED), ("268435456", Verdict.WARNING), ("max", Verdict.OK)]
)
def test_the_control_group_is_asked_for_the_least_limit_above_it(tmp_path, limit, verdict):
    """The kernel would kill a daemon whose arena does not fit; the limit may be that of a group above."""
    root = lay_out(
        tmp_path,
        proc__meminfo=f"MemTotal: {8 * GIB // 1024} kB",
        proc__self__cgroup="0::/system.slice/flexkvd.service",
        **{"sys__fs__cgroup__system.slice__memory.max": limit},
        **{"sys__fs__cgroup__system.slice__flexkvd.service__memory.max": "max"},
    )
    seen = found(Subject(config_of(tmp_path), None, None, root), "limits")
    assert seen["memory limit"].verdict is verdict
    assert seen["memory"].verdict is Verdict.OK


def test_an_arena_larger_than_the_machine_fails(tmp_path):
    """What the machine has in all comes first, before any control group."""
    root = lay_out(tmp_path, proc__meminfo="MemTotal: 32768 kB")
    memory = found(Subject(config_of(tmp_path), None, None, root), "limits")["memory"]
    assert memory.verdict is Verdict.FAILED
    assert "[dram] bytes" in memory.cure


def test_huge_pages_old_kernels_and_a_small_shm_are_warnings(tmp_path):
    """Each is told with what is lost and the line that mends it."""
    path = "sys__kernel__mm__transparent_hugepage__shmem_enabled"
    root = lay_out(tmp_path / "root", **{path: "always advise [never]", "proc__sys__kernel__osrelease": "5.10.0-amd64"})
    subject = Subject(config_of(tmp_path), None, None, root)
    assert "shmem_enabled" in found(subject, "kernel")["huge pages"].cure
    old = found(subject, "kernel")["kernel"]
    assert old.verdict is Verdict.WARNING
    assert "before 6.1 io_uring is not used" in old.detail
    (root / "dev/shm").mkdir(parents=True)
    with mounted("tmpfs", "size=16m", root / "dev/shm") as small:
        small_root = Subject(config_of(tmp_path), None, None, small.parent.parent)
        [_, shm] = kernel.shared_memory(small_root)
        assert (shm.verdict, "--shm-size" in shm.cure) == (Verdict.WARNING, True)
    lay_out(root, **{path: "always [advise] never"})
    assert found(subject, "kernel")["huge pages"].verdict is Verdict.OK


def test_a_disk_that_cannot_be_written_or_is_small_is_told(tmp_path):
    """Read-only: failed, with the user that may not write. Less room than wanted: a warning with both figures."""
    place = tmp_path / "disk"
    place.mkdir()
    with switchable(place) as disk:
        subject = Subject(config_of(tmp_path, ssd={"directory": str(disk.directory), "bytes": "64MiB"}))
        disk.read_only()
        assert found(subject, "disk")["disk"].verdict is Verdict.FAILED
        disk.writable()
        assert found(subject, "disk")["disk"].verdict in (Verdict.OK, Verdict.WARNING)
    with mounted("tmpfs", "size=32m", place) as small:
        subject = Subject(config_of(tmp_path, ssd={"directory": str(small), "bytes": "1GiB"}))
        room = found(subject, "disk")["room"]
        assert room.verdict is Verdict.WARNING
        assert "1.00 GiB wanted" in room.detail


def test_a_device_of_large_or_spinning_blocks_is_told(tmp_path):
    """More than 4 KiB of alignment cannot be met; a spinning disk can, slowly."""
    number = os.stat(tmp_path).st_dev
    queue = f"sys__dev__block__{os.major(number)}:{os.minor(number)}__queue__"
    subject = Subject(
        config_of(tmp_path, ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}), None, None, tmp_path / "root"
    )
    for block_bytes, rotates, verdict in (("16384", "0", Verdict.FAILED), ("512", "1", Verdict.WARNING)):
        lay_out(tmp_path / "root", **{f"{queue}logical_block_size": block_bytes, f"{queue}rotational": rotates})
        assert found(subject, "disk")["alignment"].verdict is verdict


def test_sockets_say_who_may_not_connect_and_what_nobody_listens_on(tmp_path):
    """A dead socket, a mode that lets in too many, a folder that is not there, a daemon that answers."""
    config = config_of(tmp_path)
    path = Path(config.daemon.socket)
    assert "can be made" in found(Subject(config), "service")["worker socket"].detail
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        dead = found(Subject(config), "service")["worker socket"]
        assert (dead.verdict, "nobody listens" in dead.detail) == (Verdict.WARNING, True)
        listener.listen()
        path.chmod(0o660)
        assert found(Subject(config), "service")["worker socket"].verdict is Verdict.OK
        path.chmod(0o666)
        assert "chmod 0660" in found(Subject(config), "service")["worker socket"].cure
    path.unlink()
    gone = config_of(tmp_path / "gone")
    assert found(Subject(gone), "service")["worker socket"].verdict is Verdict.FAILED


def test_a_running_daemon_is_asked_and_is_no_stranger(operated: Operated) -> None:
    """It holds its own directory and sockets, which is as it should be, and says itself how it is."""
    subject = Subject(operated.daemon.config, None, os.getpid())
    seen = found(subject, "configuration", "disk", "service")
    assert {name: each.detail for name, each in seen.items() if each.verdict is Verdict.FAILED} == {}
    assert "in use by the running daemon" in seen["lock"].detail
    assert seen["daemon"] == Finding("daemon", Verdict.OK, "ready")
    assert "answers" in seen["api socket"].detail
    stranger = Subject(operated.daemon.config)
    assert found(stranger, "disk")["lock"].verdict is Verdict.FAILED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told_that_it_may_not_connect():
    """A socket of mode 0600 is shut to others: failed, with what lets them in."""
    code = "import os, sys, flexkvd.cli.doctor, flexkvd.cli.output; from flexkvd.cli import main; os.setgid(65534); "
    code += "os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(name)
        folder.chmod(0o755)
        file = folder / "flexkvd.toml"
        file.write_text(f'[daemon]\nsocket = "{folder}/worker.sock"\n')
        listener.bind(str(folder / "worker.sock"))
        listener.listen()
        (folder / "worker.sock").chmod(0o600)
        command = [sys.executable, "-c", code, "doctor", "--config", str(file), "--only", "service", "--json"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    [shut] = [each for each in json.loads(ended.stdout)["checks"] if each["check"] == "worker socket"]
    assert "may not connect" in shut["detail"]
    assert "uids" in shut["cure"]


def test_a_token_that_others_may_read_is_told(tmp_path):
    """Mode 0644 is a warning with the chmod that mends it; a file that is not there fails."""
    token = tmp_path / "token"
    token.write_text("secret-of-the-test\n")
    token.chmod(0o644)
    config = config_of(tmp_path, api={"token_file": str(token)}, daemon={"token_file": str(tmp_path / "none")})
    seen = {each.check: each for each in findings(Subject(config), ("configuration",))}
    assert seen["[api] token_file"].cure.startswith("chmod 600")
    assert seen["[daemon] token_file"].verdict is Verdict.FAILED
    assert "secret-of-the-test" not in str(seen)


def test_a_unit_without_a_systemd_is_skipped(tmp_path):
    """In a container the unit may lie there, and nothing runs it."""
    root = lay_out(tmp_path / "root", **{"etc__systemd__system__flexkvd.service": "[Service]"})
    unit = found(Subject(config_of(tmp_path), None, None, root), "service")["systemd"]
    assert (unit.verdict, "no systemd runs" in unit.detail) == (Verdict.SKIPPED, True)


def test_a_configuration_that_is_wrong_is_a_usage_error(tmp_path, capsys):
    """A file that is no configuration ends with 2, before any check; one whose parts do not fit fails its check."""
    (tmp_path / "flexkvd.toml").write_text("[nothing]\n")
    assert main(["doctor", "--config", str(tmp_path / "flexkvd.toml")]) == 2
    assert "no table [nothing]" in capsys.readouterr().err
    same = config_of(tmp_path, api={"socket": str(tmp_path / "worker.sock")})
    [first, *_] = findings(Subject(same), ("configuration",))
    assert (first.verdict, "both" in first.detail) == (Verdict.FAILED, True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make a driver's library with")
@pytest.mark.parametrize(
    ("init", "arena", "verdict", "said"),
    [
        (0, "read-only", Verdict.WARNING, 'arena = "shared"'),
        (0, "shared", Verdict.OK, ""),
        (100, "shared", Verdict.FAILED, "nvidia-smi"),
    ],
)
def test_a_card_that_pins_nothing_read_only_is_told_with_both_cures(tmp_path, monkeypatch, init, arena, verdict, said):
    """Asked by ctypes of a library with the driver's symbols, made for this test: no GPU is needed to ask one."""
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DINIT={init}", "-o", library, tmp_path / "driver.c"], check=True)
    monkeypatch.setattr(device, "LIBRARY", str(library))
    subject = Subject(config_of(tmp_path, row_path={"arena": arena}))
    last = list(findings(subject, ("gpu",)))[-1]
    assert last.verdict is verdict
    assert said in last.cure
    assert ctypes.CDLL(str(library)).cuInit(0) == init


def test_a_device_without_a_driver_fails(tmp_path, monkeypatch):
    """An NVIDIA device node and no library: the container has the one and not the other."""
    monkeypatch.setattr(device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    config = config_of(tmp_path)
    assert found(Subject(config), "gpu")["cuda"].verdict in (Verdict.SKIPPED, Verdict.FAILED)
    root = lay_out(tmp_path / "root", dev__nvidiactl="")
    lost = found(Subject(config, None, None, root), "gpu")["cuda"]
    assert (lost.verdict, "--gpus all" in lost.cure) == (Verdict.FAILED, True)
