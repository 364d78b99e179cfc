"""Checks of the configuration itself, the sockets, their rights and tokens, the daemon behind them, and its unit."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd import preflight
from flexkvd.cli.doctor.finding import Finding, Subject, failed, ok, skipped, warning

UNIT = "flexkvd.service"
UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
SYSTEMCTL_S_MAX = 5.0
TOLD_ELSEWHERE = {
    ErrorCode.BAD_SOCKET_PATH,
    ErrorCode.OUT_OF_FILES,
    ErrorCode.DISK_FULL,
    ErrorCode.DIRECTORY_FOREIGN,
    ErrorCode.DIRECTORY_MISSING,
    ErrorCode.DIRECTORY_OUTDATED,
    ErrorCode.DIRECTORY_NOT_WRITABLE,
}
"""Other checks find these too, and know the cure."""
TIERS = ("ssd", "s3")


def configuration(subject: Subject) -> Iterator[Finding]:
    """What `flexkvd --check-config` says."""
    name = str(subject.config_path or "the built-in configuration")
    if subject.daemon_pid is not None:
        yield ok("configuration", f"{name}: a daemon runs with its sockets (process {subject.daemon_pid})")
        return
    found = [problem for problem in preflight.problems(subject.config) if problem.code not in TOLD_ELSEWHERE]
    for problem in found:
        yield failed("configuration", str(problem), "change what the sentence names, then run this again")
    if not found:
        yield ok("configuration", f"{name}: its keys and values fit each other")


def sockets(subject: Subject) -> Iterator[Finding]:
    """The worker socket and that of the API: their folder, their mode, whether we may connect."""
    config = subject.config
    yield from _socket("worker socket", config.daemon.socket, config.daemon.socket_mode)
    if config.api.host:
        yield ok("api", f"listens on {config.api.host}:{config.api.port}")
    elif config.api.socket:
        yield from _socket("api socket", config.api.socket, 0o600)
    else:
        why = "none: neither this command nor Prometheus can ask the daemon"
        yield warning("api", why, 'set [api] socket = "/run/flexkvd/admin.sock"')


def tokens(subject: Subject) -> Iterator[Finding]:
    """Nobody but the daemon's user should read the files of tokens."""
    given = {"[daemon] token_file": subject.config.daemon.token_file, "[api] token_file": subject.config.api.token_file}
    for key, path in given.items():
        if not path:
            continue
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError as error:
            yield failed(key, f"{path} cannot be looked at ({error.strerror})", "name a file the daemon can read")
            continue
        if mode & 0o077:
            why = f"{path} has mode {mode:04o}: others of this machine may read the token"
            yield warning(key, why, f"chmod 600 {path}, and give it to the daemon's user")
        else:
            yield ok(key, f"{path}, mode {mode:04o}")


def unit(subject: Subject) -> Iterator[Finding]:
    """The systemd unit, where there is a systemd."""
    places = [subject.root / folder / UNIT for folder in UNIT_FOLDERS]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        yield skipped("systemd", f"no {UNIT} is installed; whatever starts the daemon must restart it too")
        return
    running = (subject.root / "run/systemd/system").is_dir() and shutil.which("systemctl")
    if not running:
        yield skipped("systemd", f"{path} is there, but no systemd runs here (a container?)")
        return
    shown = _show("LoadState", "ActiveState", "UnitFileState", "TimeoutStopUSec")
    if shown is None:
        yield warning("systemd", "systemctl does not answer", "run this as root, or look at systemctl status flexkvd")
        return
    text = f"{shown.get('ActiveState', '?')}, {shown.get('UnitFileState', '?')}"
    if shown.get("LoadState") not in ("loaded", None):
        yield failed("systemd", f"{path} is {shown['LoadState']}", "systemctl daemon-reload, then systemctl status")
    elif shown.get("ActiveState") == "failed":
        yield failed("systemd", text, "journalctl -u flexkvd says why; then systemctl reset-failed flexkvd")
    elif shown.get("UnitFileState") != "enabled":
        yield warning("systemd", f"{text}: it does not start with the machine", "systemctl enable flexkvd")
    else:
        yield ok("systemd", text)


def _socket(name: str, path: str, mode: int) -> Iterator[Finding]:
    folder = Path(path).parent
    if not folder.is_dir():
        cure = f"make it ({'systemd: RuntimeDirectory=flexkvd; else ' if str(folder).startswith('/run') else ''}"
        yield failed(name, f"{folder} is not there", f"{cure}mkdir, owned by the daemon's user)")
        return
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.access(folder, os.W_OK | os.X_OK):
            yield ok(name, f"{path} can be made; no daemon has it now")
        else:
            yield failed(name, f"user {os.geteuid()} may not write to {folder}", f"chown {folder} to the daemon's user")
        return
    except OSError as error:
        yield failed(name, f"{path} cannot be looked at ({error.strerror})", "run this as the daemon's user or root")
        return
    yield _connection(name, path, mode, stat.S_IMODE(found.st_mode))


def _connection(name: str, path: str, mode: int, mode_found: int) -> Finding:
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except PermissionError:
        cure = "join the socket's group, or add this user to [daemon] uids; the API's socket is the daemon's user's"
        return failed(name, f"user {os.geteuid()} may not connect to {path} (mode {mode_found:04o})", cure)
    except OSError as error:
        return warning(
            name, f"nobody listens on {path} ({error.strerror})", "start flexkvd; it replaces a file left behind"
        )
    if mode_found & ~mode:
        why = f"{path} has mode {mode_found:04o}, configured is {mode:04o}"
        return warning(name, why, f"chmod {mode:04o} {path}, or restart the daemon")
    return ok(name, f"{path} answers, mode {mode_found:04o}")


def _show(*properties: str) -> dict[str, str] | None:
    """Properties of the unit; None where systemd does not answer."""
    command = ["systemctl", "show", UNIT, f"--property={','.join(properties)}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SYSTEMCTL_S_MAX, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(line.split("=", 1) for line in told.stdout.splitlines() if "=" in line)


def daemon(subject: Subject) -> Iterator[Finding]:
    """What a running daemon says of itself."""
    if subject.daemon_pid is None or not subject.config.api.socket or subject.config.api.host:
        yield skipped("daemon", "none is asked: it does not run, or its API is not on a Unix socket")
        return
    from flexkvd.cli.admin import AdminClient  # noqa: PLC0415 - only where a daemon runs

    try:
        report = AdminClient(subject.config.api.socket).json("/readyz")
    except FlexKVError as error:
        yield failed("daemon", str(error), "see the daemon's log")
        return
    if "ready" not in report:
        yield skipped("daemon", "its API asks for a token; flexkv status --token-file FILE shows how it is")
        return
    reasons = "; ".join(map(str, report.get("reasons", {}).values())) if not report["ready"] else ""
    if reasons:
        yield warning("daemon", f"not ready: {reasons}", "wait for it, or see its log")
    for what, why in report.get("degraded", {}).items():
        more = f"flexkv tiers {what} says more; the others serve meanwhile" if what in TIERS else "it serves meanwhile"
        yield warning("daemon", f"{what}: {why}", more)
    if report["ready"] and not report.get("degraded"):
        yield ok("daemon", "ready")
