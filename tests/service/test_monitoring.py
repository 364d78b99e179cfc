"""Alert rules and dashboard ask for what is served, say what to do, and can be read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from flexkv_py.core.messages import Fault, MoveKind, Outcome, Priority, ReplayOutcome, TicketKind, Tier
from flexkv_py.errors import ErrorCode
from flexkvd.families import FAMILIES
from flexkvd.measures import BREAKER_STATES

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "service/grafana/flexkvd.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "service/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]

OF_PROMETHEUS = {"instance", "job"}
FAMILY = {family.name: family for family in FAMILIES}
VALUES: dict[str, set[str]] = {
    "tier": {tier.name.lower() for tier in Tier} | {"none"},
    "operation": {*MoveKind, *TicketKind},
    "priority": {priority.name.lower() for priority in Priority},
    "outcome": {*Outcome, *ReplayOutcome},
    "fault": set(Fault),
    "code": set(ErrorCode),
    "state": set(BREAKER_STATES),
    "result": {"hit", "miss"},
    "link": {"worker_dram", "dram_worker", "dram_ssd", "ssd_dram", "dram_s3", "s3_dram", "ssd_drop", "s3_drop"},
}


def drawn() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard with the title of its panel, as Grafana sends it."""
    asked = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    asked += [(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]
    for title, expression in asked:
        sent = expression.replace("$__rate_interval", "1m").replace("$__range", "3h").replace("$instance", ".*")
        assert "$" not in sent
        yield title, sent


EXPRESSIONS = [*((rule["alert"], rule["expr"]) for rule in RULES), *drawn()]


def nodes(expression: str, kind: type) -> list[Any]:
    """Nodes of a kind in a PromQL expression; an error of its grammar is raised."""
    found: list[Any] = []
    promql.walk(promql.parse(expression), found.append)
    return [node for node in found if isinstance(node, kind)]


def labels_of(name: str) -> set[str]:
    """Labels of a series, with those Prometheus adds; raises KeyError for one that is not served."""
    if name == "up":
        return OF_PROMETHEUS
    family = FAMILY.get(name)
    if family is not None:
        assert family.kind != "histogram", f"{name} has no series of its own name"
        return {*family.labels, *OF_PROMETHEUS}
    family = FAMILY[re.sub("_(bucket|sum|count)$", "", name)]
    assert family.kind == "histogram", name
    return {*family.labels, *OF_PROMETHEUS} | ({"le"} if name.endswith("_bucket") else set())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_everything_asked_for_is_served(where: str, expression: str) -> None:
    """Every metric, label and value in an expression is one the daemon has, and its grammar is right."""
    known: set[str] = set()
    for selector in nodes(expression, promql.VectorSelector):
        labels = labels_of(selector.name)
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
            assert matcher.name not in VALUES or set(matcher.value.split("|")) <= VALUES[matcher.name], where
        known |= labels
    assert known, where
    for each in nodes(expression, promql.AggregateExpr):
        assert each.modifier is None or set(each.modifier.labels) <= known, where


def test_a_counter_is_never_drawn_as_it_is() -> None:
    """Counters are asked for over a time only: their value says when the daemon began, not what it does."""
    for where, expression in EXPRESSIONS:
        over_time = {each.vector_selector.name for each in nodes(expression, promql.MatrixSelector)}
        for selector in nodes(expression, promql.VectorSelector):
            if selector.name.endswith(("_total", "_bucket")):
                assert selector.name in over_time, where


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """It has a severity, a summary that names the node, cause and cure, and a section of docs/alerts.md."""
    said = rule["annotations"]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert "{{ $labels.instance }}" in said["summary"]
    assert len(said["description"]) > 80
    document, anchor = said["runbook"].split("#")
    headings = re.findall(r"^### (\w+)$", (ROOT / document).read_text(), re.MULTILINE)
    assert (headings.count(rule["alert"]), anchor) == (1, rule["alert"].lower())
    used = set(re.findall(r"\$labels\.(\w+)", said["summary"] + said["description"]))
    kept = [set(each.modifier.labels) for each in nodes(rule["expr"], promql.AggregateExpr)]
    kept = kept or [labels_of(each.name) for each in nodes(rule["expr"], promql.VectorSelector)]
    assert all(used <= labels for labels in kept), "a label that the expression does not keep"


def test_every_section_of_the_runbook_is_of_an_alert() -> None:
    """docs/alerts.md has no section of an alert that is gone."""
    headings = re.findall(r"^### (Flexkvd\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in RULES)


def test_the_dashboard_is_laid_out_without_gaps_and_overlaps() -> None:
    """Panels have ids and titles of their own, fill 24 columns, and none lies on another; each says what it shows."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells, panel["title"]
        cells |= covered
    assert max(x for x, _ in cells) == 23
    assert len(cells) == 24 * (1 + max(y for _, y in cells)), "some columns are empty"
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
