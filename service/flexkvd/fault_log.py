"""Failed transfers in the log: a full or broken disk is not silent, and does not flood either.

Owns which are written; called by `executor` with every failed transfer.
"""

from __future__ import annotations

import logging

from flexkv_py.core.messages import Fault

log = logging.getLogger(__name__)

QUIET_S = 10.0
"""After a line on a link and a fault, the next ones of both are only counted for so long."""


class FaultLog:
    """One line per link and fault every `QUIET_S`, with the number of those that had none."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, Fault], tuple[float, int]] = {}  # when the last line was, how many since

    def failed(self, link: str, fault: Fault, detail: str, now_s: float) -> None:
        """Write a line, or count."""
        told_s, since = self._told.get((link, fault), (now_s - QUIET_S, 0))
        if now_s - told_s < QUIET_S:
            self._told[link, fault] = (told_s, since + 1)
            return
        self._told[link, fault] = (now_s, 0)
        words = f"{link}: {fault.value}" + (f": {detail}" if detail else "")
        log.warning("%s", f"{words}; {since} more since the last such line" if since else words)
