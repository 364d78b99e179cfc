"""Commands of the pages for operators, against a daemon that serves two tenants."""

from __future__ import annotations

import re

import pytest

from tests.docs.conftest import Shell
from tests.docs.test_first_steps import commands

pytestmark = pytest.mark.timeout(240)

START = """
mkdir -p try/ssd
cat > try/flexkvd.toml <<'END'
[daemon]
socket = "try/worker.sock"
[api]
socket = "try/admin.sock"
[dram]
bytes = "64MiB"
segment_bytes = "4MiB"
huge_pages = false
[ssd]
directory = "try/ssd"
bytes = "256MiB"
[tenants.team-b]
weight = 1.0
END
flexkvd --config try/flexkvd.toml > try/log 2>&1 &
export FLEXKV_ADDRESS=try/admin.sock
until flexkv status > /dev/null 2>&1; do sleep 0.1; done
python service/docker/worker.py try/worker.sock --once
echo 'read some-token' > tokens
"""
PAGES = tuple(f"docs/{name}.md" for name in ("recipes", "troubleshooting", "operating", "security", "recorder"))


def test_every_recipe_does_what_it_says(shell: Shell) -> None:
    """All commands of the operators' pages, in their order, in one session: each of them ends well."""
    marks = [f"\necho '== {page}'\n" + commands(page) for page in PAGES]
    out = shell(START + "".join(marks)).stdout
    recipes = out[out.index("== docs/recipes.md") : out.index("== docs/troubleshooting.md")]
    promised = ("a hit: whole in", "never seen here", "evict done", "drain done", "flush done", "ends in the state")
    assert [each for each in promised if each not in recipes] == []
    assert re.search(r"evict done.*\nblocks +16\n", recipes), recipes
    assert "0 B of 8.00 GiB" in recipes
