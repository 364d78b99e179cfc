"""docs/decoding.md: its decoder runs as it stands, with less HBM and DRAM than it needs, and again from the cache."""

import re
from collections.abc import Callable
from pathlib import Path

from .conftest import DaemonThread
from .rows import readers, until
from .test_embedding import REPOSITORY, run

SAID = re.compile(r"tokens: (\d+) replays: (\d+) rows read, none wrong: (\d+)")


def test_the_decoder_runs_cold_and_warm(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Every row it reads is checked, absent ones are replayed, and in the end nothing is held."""
    document = (REPOSITORY / "docs/decoding.md").read_text()
    [text] = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    script = tmp_path / "decode.py"
    script.write_text(text)
    (tmp_path / "ssd").mkdir()
    small = {"bytes": "1MiB", "segment_bytes": "1MiB", "huge_pages": False}
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon = start(dram=small, ssd=ssd, row_path={"replay_s_max": 60, "ack_s_max": 60})  # however slow the machine is
    for _ in range(2):
        [line] = run(script, daemon.socket)
        said = SAID.fullmatch(line)
        assert said is not None, line
        tokens, replays, rows = map(int, said.groups())
        assert tokens >= 200
        assert replays > 0
        assert rows > 10_000
    until(lambda: readers(daemon) == 0)
