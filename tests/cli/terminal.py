"""A terminal in memory: runs a `flexkv` command in a pty of a given size and keeps what is on its screen.

As a module: `with Terminal(["top"], 80, 24) as terminal:` and `terminal.wait_for(…)`, `terminal.press("q")`. By hand:
`python -m tests.cli.terminal 80x24 SECONDS top --address …` prints the screen after that time.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pyte

WAIT_S_MAX = 20.0
RUN = "import sys; from flexkvd.cli import main; sys.exit(main(sys.argv[1:]))"


class Terminal:
    """One command and the screen it draws on. `with` ends it."""

    def __init__(self, arguments: list[str], columns: int, rows: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._status: int | None = None
        path = os.pathsep.join(sys.path)
        environment = os.environ | {"PYTHONPATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        for variable in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(variable, None)
        self.pid, self._master = pty.fork()
        if self.pid == 0:  # the child: nothing here returns
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(sys.executable, [sys.executable, "-c", RUN, *arguments], environment)
        self.resize(columns, rows)

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without the blanks at the ends of lines."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    def resize(self, columns: int, rows: int) -> None:
        """As a window manager does it: the size, then the signal."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def look(self, seconds: float) -> None:
        """Draw what comes for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._read(left):
            pass

    def wait_for(self, word: str) -> str:
        """The screen, once it has that word."""
        end = time.monotonic() + WAIT_S_MAX
        while word not in self.text:
            assert time.monotonic() < end, f"no {word!r} on the screen:\n{self.text}"
            assert self._read(0.1) or word in self.text, f"it ended without {word!r}:\n{self.text}"
        return self.text

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        end = time.monotonic() + WAIT_S_MAX
        while self._status is None and time.monotonic() < end:
            self._read(0.05)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._status = os.waitstatus_to_exitcode(status)
        assert self._status is not None, f"it does not end:\n{self.text}"
        return self._status

    def _read(self, timeout_s: float) -> bool:
        """Take in what was drawn; False once the other side has gone."""
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        if ready:
            try:
                self._stream.feed(os.read(self._master, 65_536))
            except OSError:  # EIO: nobody has the other end open any more
                return False
        return True

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)


def main() -> None:
    """Print the screen of a command after some seconds."""
    columns, rows = map(int, sys.argv[1].split("x"))
    with Terminal(sys.argv[3:], columns, rows) as terminal:
        terminal.look(float(sys.argv[2]))
        sys.stdout.write(terminal.text + "\n")


if __name__ == "__main__":
    main()
