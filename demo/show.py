"""What the run says while it runs: progress bars on a terminal, plain lines elsewhere.

Called by `run`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINES_PER_STEP = 4
"""Plain lines in one step of the run, where there is no terminal."""


class Show:
    """Says where the run stands."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.perf_counter()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Show:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, what: str) -> None:
        """One line about something that happened."""
        self.console.print(f"[dim]{time.perf_counter() - self._started:6.1f} s[/]  {what}", highlight=False)

    @contextlib.contextmanager
    def step(self, what: str, calls: int) -> Iterator[Callable[[], None]]:
        """Show a step of `calls` calls; what it yields is called after each."""
        task = self._bars.add_task(what, total=calls)
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._bars.advance(task)
            if not self.console.is_terminal and done * _LINES_PER_STEP // calls > (done - 1) * _LINES_PER_STEP // calls:
                self.say(f"{what}: {done} of {calls}")

        yield advance
        self._bars.stop_task(task)
