"""A real systemd as the first process of namespaces of its own, for tests: nothing it does reaches the machine.

It has a root, processes, network and cgroups of its own (`enter.sh`). Of the machine it sees `/usr` and what it is told
to, and can write none of it; `/usr/local`, `/etc`, `/var/lib` and `/var/cache` are copies in the test's folder. Needs
root; `World` says why it cannot be had elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from flexkvd.cli.children import die_with_parent

ROOT = Path(__file__).parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
START_S_MAX = 20.0
COMMAND_S_MAX = 90.0
_ENTER = ("unshare", "--mount", "bash", str(Path(__file__).with_name("enter.sh")))


class Unavailable(Exception):
    """No such systemd can be had here, for this reason."""


class World:
    """A running systemd; `with` ends it and all it runs. It can read the checkout, the interpreter, `folder`/bin."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0 or not SYSTEMD.exists() or shutil.which("nsenter") is None:
            raise Unavailable("a systemd of one's own needs root, systemd and nsenter (util-linux)")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._place = (str(folder / "world"), f"flexkv-test-{os.getpid()}-{time.monotonic_ns()}")
        self._log = folder / "systemd.log"
        readable = dict.fromkeys(map(str, [ROOT, self.bin, sys.prefix, sys.base_prefix]))
        self.readable = tuple(each for each in readable if not each.startswith("/usr"))
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                [*_ENTER, "start", *self._place, str(SYSTEMD), *self.readable],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        self._first = 0  # its first process, as seen from here
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in there, from the checkout."""
        self._assert_apart()
        done = subprocess.run(
            ["nsenter", "--target", str(self._first), "--all", "env", "-C", str(ROOT), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def systemctl(self, *arguments: str) -> str:
        return self.run("systemctl", *arguments).stdout

    def show(self, name: str, unit: str = "flexkvd.service") -> str:
        """One property of a unit."""
        return self.systemctl("show", unit, f"--property={name}", "--value").strip()

    def path(self, inside: str) -> Path:
        """A path in there, as it is reached from here."""
        self._assert_apart()
        return Path(f"/proc/{self._first}/root{inside}")

    def drop_in(self, unit: str, name: str, text: str) -> None:
        """Write a drop-in for a unit, or remove it (empty text), and let systemd read it."""
        file = self.path(f"/etc/systemd/system/{unit}.d/{name}.conf")
        file.parent.mkdir(exist_ok=True)
        if text:
            file.write_text(text)
        else:
            file.unlink()
        self.systemctl("daemon-reload")

    def close(self) -> None:
        self._outer.kill()  # and with it, by --kill-child, everything in there
        self._outer.wait()
        subprocess.run([*_ENTER, "remove", *self._place], timeout=START_S_MAX, capture_output=True, check=False)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> None:
        end = time.monotonic() + START_S_MAX
        while True:
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            self._first = int(children[0]) if children else 0
            if self._first and self._is_systemd() and self._is_up():
                return
            if self._outer.poll() is not None or time.monotonic() > end:
                raise Unavailable(f"no systemd starts in namespaces of its own here: {self._log.read_text()[-300:]}")
            time.sleep(0.05)

    def _is_systemd(self) -> bool:
        """Not the script before it, which still sees the machine's files."""
        return Path(f"/proc/{self._first}/comm").read_text().strip() == "systemd"

    def _assert_apart(self) -> None:
        """What is done there may be destructive: never do it here, whoever has that pid by now."""
        theirs, ours = os.readlink(f"/proc/{self._first}/ns/mnt"), os.readlink("/proc/self/ns/mnt")
        assert self._is_systemd(), "that systemd is gone"
        assert theirs != ours, "that systemd is the machine's own"

    def _is_up(self) -> bool:
        return self.run("systemctl", "is-active", "world.target", check=False).returncode == 0


def launcher(world: World, module: str) -> str:
    """A drop-in by which the service finds a `flexkvd` that runs this module of the checkout, whose files it may read.

    Everything else stays as it is in the unit, but for homes: the interpreter may lie in one.
    """
    command = world.bin / "flexkvd"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    command.chmod(0o755)
    search = ":".join(map(str, [ROOT, ROOT / "tiers", ROOT / "service"]))
    return (
        "[Unit]\nDefaultDependencies=no\n[Service]\n"
        f"Environment=PATH={world.bin}:/usr/local/bin:/usr/bin:/bin PYTHONPATH={search} PYTHONDONTWRITEBYTECODE=1\n"
        f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(world.readable)}\nStandardError=append:/run/flexkvd.log\n"
    )
