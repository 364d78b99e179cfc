"""What exists is documented, and nothing else: modules, settings, routes, metrics, messages, errors, parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from flexkv_py.errors import ErrorCode
from flexkv_py.wire.messages import ClientMessage, DaemonMessage
from flexkvd.api import reference
from flexkvd.api.app import ROUTERS, make_app
from flexkvd.api.description import describe as describe_api
from flexkvd.api.description import operations
from flexkvd.config import TenantTable, describe
from flexkvd.families import FAMILIES
from flexkvd.toml_tables import keys_of

ROOT = Path(__file__).parents[1]
PACKAGES = {"flexkv_py": "flexkv_py", "flexkv_tiers": "tiers/flexkv_tiers", "flexkvd": "service/flexkvd"}


def modules() -> list[str]:
    """Dotted names of all modules and packages."""
    found = []
    for name, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.append(".".join((name, *parts)).removesuffix(".__init__"))
    return found


def first_cells(document: str) -> list[str]:
    """The first cell of every table row that begins with a word in backticks."""
    return re.findall(r"^\| `([^`]+)`", (ROOT / document).read_text(), re.MULTILINE)


def test_every_module_has_its_line():
    """ARCHITECTURE.md has one line for each module, and none for a module that is gone."""
    assert sorted(first_cells("ARCHITECTURE.md")) == sorted(modules())


def test_every_setting_is_documented():
    """docs/configuration.md and the example file name every key of every table."""
    keys = [f"{key.table}.{key.name}" for key in describe()]
    keys += [f"tenants.NAME.{each.name}" for each, _ in keys_of(TenantTable)]
    assert sorted(first_cells("docs/configuration.md")) == sorted(keys)
    example = (ROOT / "service/flexkvd.example.toml").read_text()
    missing = [key.name for key in describe() if not re.search(rf"^#? ?{key.name} = ", example, re.MULTILINE)]
    assert missing == []


def test_the_reference_of_the_rest_api_is_fresh():
    """docs/rest.md is what `python -m flexkvd.api.reference` makes of the routes as they are."""
    assert (ROOT / "docs/rest.md").read_text() == reference.text()


def test_every_route_is_described():
    """Every route with data has a summary and a sentence in the description, and a name of its own."""
    known = [route for router in ROUTERS for route in router(None).routes if route.include_in_schema]
    routes = {f"{method} {route.path_format}" for route in known for method in route.methods}
    spec = describe_api(make_app(None))
    described = {f"{method} {path}": operation for method, path, operation in operations(spec)}
    assert described.keys() == routes
    assert all(each["summary"] and each["description"] for each in described.values())
    assert len({each["operationId"] for each in described.values()}) == len(routes)


def test_every_metric_is_documented():
    """docs/metrics.md names every metric."""
    assert sorted(first_cells("docs/metrics.md")) == sorted(family.name for family in FAMILIES)


def test_what_may_change_live_is_listed():
    """docs/configuration.md lists the keys that change without a restart, and no other."""
    document = (ROOT / "docs/configuration.md").read_text()
    listed = re.findall(r"^- `(\w+\.\w+)`$", document, re.MULTILINE)
    assert listed == [f"{key.table}.{key.name}" for key in describe() if key.live]


def test_every_message_is_documented():
    """docs/protocol.md names every message with its tag."""
    document = (ROOT / "docs/protocol.md").read_text()
    messages = [*get_args(ClientMessage), *get_args(DaemonMessage)]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", document, re.MULTILINE)
    assert sorted(rows) == sorted((each.__name__, str(each.__struct_config__.tag)) for each in messages)


def test_every_error_is_explained():
    """docs/errors.md gives cause and cure of each code, once."""
    assert sorted(first_cells("docs/errors.md")) == sorted(code.value for code in ErrorCode)


def test_every_benchmark_is_described():
    """docs/benchmarks.md has a row for each part of scripts/bench."""
    rows = re.findall(r"^\| (\w+) \| ", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    helpers = {
        "__init__",
        "__main__",
        "attributes",
        "row",
        "echo",
        "null_s3",
        "s3_clients",
        "disk_ways",
        "hot_bed",
        "hot_device",
    }
    assert set(rows) - {"part"} == {path.stem for path in (ROOT / "scripts/bench_parts").glob("*.py")} - helpers


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tiers/*.md")]), ids=str
)
def test_links_lead_somewhere(path):
    """Every relative link of every document leads to a file or folder of the repository."""
    targets = re.findall(r"\]\(([^)#:]+)\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []
