"""The style that can be counted: sizes, docstrings, words, imports. Every file of the repository is read."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("flexkv_py", "tiers", "service", "demo", "scripts")
MODULE_LINES_MAX = 400
DECLARATION_LINES_MAX = 500
DECLARATIONS = {Path("flexkv_py") / package / "messages.py" for package in ("core", "operating", "rows", "wire")}
"""Vocabularies: nothing but declarations, and a reader wants all of them in one place."""

TEST_LINES_MAX = 500
FUNCTION_LINES_MAX = 50
CORE_LINES_MAX = 3_500
ROWS_LINES_MAX = 1_800
OPERATING_LINES_MAX = 950
TENANTS_LINES_MAX = 1_000
ABBREVIATIONS = {"src", "dst", "cfg", "conf", "buf", "msg", "idx", "cnt", "num", "tmp", "ptr", "req", "resp", "res"}
GIVEN_BY_PYTEST = {"tmp_path", "tmp_path_factory"}


def files(*folders: str) -> list[Path]:
    """Python files of these folders, those without an ending included (`scripts/...`)."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file())
    return [path.relative_to(ROOT) for path in paths if path.suffix == ".py" or is_python_script(path)]


def is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == "" and b"python" in file.readline(100)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def line_count(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def names(path: Path) -> set[str]:
    """Every word a module binds: arguments, variables, attributes, functions, classes."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


of_product = pytest.mark.parametrize("path", files(*PRODUCT), ids=str)
of_tests = pytest.mark.parametrize("path", files("tests"), ids=str)
of_all = pytest.mark.parametrize("path", files(*PRODUCT, "tests"), ids=str)


@of_product
def test_a_module_is_small(path):
    """A module of the product has at most 400 lines; a longer one is to be split by noun."""
    assert line_count(path) <= (DECLARATION_LINES_MAX if path in DECLARATIONS else MODULE_LINES_MAX)


@of_tests
def test_a_test_module_is_small(path):
    """A test module has at most 500 lines."""
    assert line_count(path) <= TEST_LINES_MAX


@of_all
def test_a_function_is_small(path):
    """A function has at most 50 lines, its signature and docstring included."""
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path)}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES_MAX} == {}


def test_the_core_stays_readable_in_a_sitting():
    """What decides in `flexkv_py.core` has at most 3,500 lines: all of it but the vocabulary."""
    assert sum(line_count(path) for path in files("flexkv_py/core") if path not in DECLARATIONS) <= CORE_LINES_MAX


def test_tenants_stay_as_readable():
    """What decides in `flexkv_py.tenants`, which also keeps rooms ready and serves lines, has at most 1,000 lines."""
    assert sum(line_count(path) for path in files("flexkv_py/tenants")) <= TENANTS_LINES_MAX


def test_the_row_path_stays_as_readable():
    """What decides in `flexkv_py.rows` has at most 1,800 lines, its vocabulary aside."""
    assert sum(line_count(path) for path in files("flexkv_py/rows") if path not in DECLARATIONS) <= ROWS_LINES_MAX


def test_the_operators_wishes_stay_as_readable():
    """What decides in `flexkv_py.operating` has at most 950 lines, its vocabulary aside."""
    deciding = [path for path in files("flexkv_py/operating") if path not in DECLARATIONS]
    assert sum(line_count(path) for path in deciding) <= OPERATING_LINES_MAX


@of_all
def test_a_module_says_what_it_owns(path):
    """Every module that is not empty has a docstring."""
    assert not tree(path).body or ast.get_docstring(tree(path))


@of_tests
def test_a_test_says_what_it_shows(path):
    """Every test function has a docstring."""
    assert [f.name for f in functions(path) if f.name.startswith("test_") and not ast.get_docstring(f)] == []


@of_all
def test_names_are_words(path):
    """No variable, argument, function or class is called by, or with, an abbreviation."""
    own = names(path) - GIVEN_BY_PYTEST
    assert {name for name in own if ABBREVIATIONS & set(name.lower().split("_"))} == set()


@of_all
def test_nothing_is_pickled(path):
    """No module imports pickle or what pickles underneath."""
    imported: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert imported.isdisjoint({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"})


@of_all
def test_nothing_is_left_for_later(path):
    """No marker of unfinished work, and no body that only raises."""
    unfinished = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"))
    assert not re.search(rf"\b({unfinished})\b", (ROOT / path).read_text())


@of_product
def test_assertions_state_invariants_only(path):
    """An assertion in the product has no side effect: no call to something that stores or waits."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Assert):
            assert not any(isinstance(inner, ast.Await | ast.NamedExpr) for inner in ast.walk(node.test)), node.lineno
