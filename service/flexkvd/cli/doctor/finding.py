"""What a check of `flexkv doctor` looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from flexkvd.config import Config


class Verdict(StrEnum):
    """How it is. Only `failed` makes the command end with 1."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `cure` is empty only where there is nothing to mend."""

    check: str
    verdict: Verdict
    detail: str
    cure: str = ""

    def __post_init__(self) -> None:
        assert self.cure or self.verdict in (Verdict.OK, Verdict.SKIPPED), self


@dataclass(frozen=True, slots=True)
class Subject:
    """The configuration, and the machine as its files show it: below `root`, which a test may lay out itself."""

    config: Config
    config_path: Path | None = None
    daemon_pid: int | None = None
    """The daemon of this configuration, if it runs: its limits count, not those of this shell."""
    root: Path = field(default=Path("/"))

    def read(self, path: str) -> str | None:
        """The text of a file of the kernel's, without its last newline; None where there is none."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


Check = Callable[[Subject], Iterator[Finding]]


def ok(check: str, detail: str) -> Finding:
    """It is as it should be."""
    return Finding(check, Verdict.OK, detail)


def warning(check: str, detail: str, cure: str) -> Finding:
    """It works, though not as well as it could."""
    return Finding(check, Verdict.WARNING, detail, cure)


def failed(check: str, detail: str, cure: str) -> Finding:
    """A daemon cannot start, or a tier cannot work."""
    return Finding(check, Verdict.FAILED, detail, cure)


def skipped(check: str, detail: str) -> Finding:
    """Nothing of the kind is configured, or there is nothing to look at."""
    return Finding(check, Verdict.SKIPPED, detail)
