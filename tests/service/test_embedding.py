"""docs/embedding.md: its examples run as they stand, its tables name what there is."""

import contextlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from flexkv_py.client import Client, Gates, Lease, Memory, Outcome, RowRequest, Ticket, TicketProgress
from flexkv_py.client.aio import AsyncClient, AsyncLease, AsyncMemory, AsyncRowRequest, AsyncTicket
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import ROOT

from .conftest import DaemonThread

REPOSITORY = Path(__file__).parents[2]
DOCUMENT = (REPOSITORY / "docs/embedding.md").read_text()
INSIDES = {"ask_about", "after_fork", "forget", "pack_pages", "alive_link"}
INSIDES |= {"begin", "give_up", "all_open"}
INSIDES |= {"take_pages", "acknowledge", "extend_row", "detach_row", "forget_row", "attach_on"}
"""Public to the other modules of the client only."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The examples, as a reader would save them; the first one's path."""
    worker, gates, rows = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    (tmp_path / "worker.py").write_text(worker)
    (tmp_path / "gates.py").write_text(gates)
    (tmp_path / "rows.py").write_text(rows)
    return tmp_path / "worker.py"


@pytest.fixture
def example(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("embedding_example", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: Path, socket: Path) -> list[str]:
    """What the example prints as a process of its own; it fails if anything is said on standard error."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(socket)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_the_example_runs_cold_and_warm(start: Callable[..., DaemonThread], tmp_path: Path, script: Path) -> None:
    """As a process against a daemon: nothing cached at first, all for the second worker, and all after a restart."""
    ssd: dict[str, object] = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon = start(ssd=ssd)
    cold = run(script, daemon.socket)
    assert cold == [
        "first worker, from the cache: 0",
        "second worker, from the cache: 4",
        "a scheduler finds: 4",
        "outcome of a load: loaded",
        "flushed: True",
    ]
    assert daemon.stop() == 0
    assert run(script, start(ssd=ssd).socket)[0] == "first worker, from the cache: 4"


def test_the_example_of_gates_loads_layer_by_layer(start: Callable[..., DaemonThread], script: Path) -> None:
    """As a process: every layer is told by its gate."""
    assert run(script.with_name("gates.py"), start().socket) == ["layers ready: 8 blocks loaded: 4"]


def test_the_example_of_rows_reads_one(start: Callable[..., DaemonThread], script: Path) -> None:
    """As a process: what the worker computed for token 70 is what its mapping of the arena shows."""
    assert run(script.with_name("rows.py"), start().socket) == ["layer 5 of token 70: 75"]


def test_the_example_works_over_a_restart(start: Callable[..., DaemonThread], example: ModuleType) -> None:
    """Its worker computes the same rows while the daemon is gone, and loads again from the next one."""
    daemon = start()
    tokens = list(range(4 * example.BLOCK_TOKENS))
    computing, loading = example.Worker(str(daemon.socket)), example.Worker(str(daemon.socket))
    pages = list(range(16))
    assert computing.prefill(tokens, pages) == 0
    assert daemon.stop() == 0
    assert loading.prefill(tokens, pages) == 0
    assert loading.kv[:] == computing.kv[:]
    daemon = start()
    computing.client.connect()
    assert computing.prefill(tokens, pages) == 0
    loading.client.connect()
    loading.kv[:] = bytes(len(loading.kv))
    assert loading.prefill(tokens, pages) == 4
    assert loading.kv[:] == computing.kv[:]
    for worker in (computing, loading):
        worker.client.close()


class LayerError(Exception):
    """What an engine may raise between two layers."""


def test_an_exception_between_layers_costs_the_example_no_lease_and_no_page(
    daemon: DaemonThread, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the example as it was raised, with the lease given back and the pages fenced."""
    tokens, pages = list(range(4 * example.BLOCK_TOKENS)), list(range(16))
    worker = example.Worker(str(daemon.socket))
    worker.prefill(tokens, pages)
    fenced: list[list[int]] = []
    monkeypatch.setattr(worker, "fence", fenced.append)
    monkeypatch.setattr(Ticket, "wait", interrupt)
    with pytest.raises(LayerError):
        worker.load(worker.client.keys(tokens), pages)
    assert fenced == [pages]
    assert daemon.call(lambda: len(daemon.parts.planner.state.leases)) == 0
    worker.client.close()


def test_the_end_of_a_lease_hides_no_failure(daemon: DaemonThread, example: ModuleType) -> None:
    """With the connection gone, what was raised inside of the `with` comes out, and nothing if there was nothing."""
    tokens = list(range(4 * example.BLOCK_TOKENS))
    worker = example.Worker(str(daemon.socket))
    worker.prefill(tokens, list(range(16)))
    for failures in ([], [LayerError()]):
        with contextlib.suppress(LayerError), worker.client.match(worker.client.keys(tokens), hold_s=30).lease:
            worker.client._link.close("as if the daemon had ended it")
            for failure in failures:
                raise failure
    worker.client.close()


def interrupt(*_: object, **__: object) -> None:
    raise LayerError


def cells(heading: str) -> list[str]:
    """First cells of the table whose header begins so."""
    [table] = re.findall(rf"^\| {re.escape(heading)} \|.*\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    return [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[1:]]


def public(owner: type) -> set[str]:
    return {name for each in owner.__mro__ for name in vars(each) if not name.startswith("_")} - INSIDES


def arguments(call: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Name, kind and default of every parameter."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]


def test_the_tables_name_every_call() -> None:
    """Every public method of both clients has its row with its arguments, and no row is of a method that is gone."""
    rows = [re.findall(r"`([^`]+)`", cell) for cell in cells("call")]
    documented = {name.split("(")[0]: name for row in rows for name in row}
    assert set(documented) == public(Client) == public(AsyncClient)
    for name, row in documented.items():
        call = getattr(Client, name)
        if callable(call):
            documented_call = eval(f"lambda self, {row.split('(', 1)[1][:-1]}: None", {"ROOT": ROOT})
            assert arguments(call) == arguments(documented_call), row
            assert arguments(call) == arguments(getattr(AsyncClient, name)), name


def test_the_tables_name_everything_else() -> None:
    """Arguments of the constructor, what tickets, leases and memories can do, fields and outcomes."""
    constructor = set(inspect.signature(Client).parameters) - {"path", "geometry"}
    assert {cell.strip("`") for cell in cells("argument")} == constructor
    done = {call.split("(")[0] for cell in cells("on what a call returned") for call in re.findall(r"`([^`]+)`", cell)}
    for kinds in ((Memory, Lease, Ticket, RowRequest), (AsyncMemory, AsyncLease, AsyncTicket, AsyncRowRequest)):
        assert {name.split(".")[1] for name in done} == set().union(*map(public, kinds))
    gates = {name for call in cells("on `Gates`") for name in re.findall(r"gates\.(\w+)", call)}
    assert gates | {"mapped"} == public(Gates) | {"offset", "chunk_count"}
    assert [cell.strip("`") for cell in cells("field of `TicketProgress`")] == [f.name for f in fields(TicketProgress)]
    assert {cell.strip("`") for cell in cells("`Outcome`")} == {outcome.value for outcome in Outcome}


def test_a_geometry_that_does_not_fit_is_refused_at_every_call(daemon: DaemonThread) -> None:
    """The daemon's own reason and code come back before, within and after the back-off."""
    geometry = Geometry(planes=(Plane("kv", (0,), 1 << 20),), chunk_count_max=1)
    client = Client(daemon.socket, geometry)
    for _ in range(5):
        with pytest.raises(FlexKVError, match="segment_bytes") as refusal:
            client.ping()
        assert refusal.value.code is ErrorCode.BAD_GEOMETRY
    client.close()


def test_the_worker_of_the_compose_file_works(daemon: DaemonThread) -> None:
    """The example worker saves and loads a chain, and finds its bytes."""
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "service/docker/worker.py"), str(daemon.socket), "--once"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stdout == "turn 0: 0 of 16 blocks were a hit, 16 saved, 16 loaded\n", ended.stderr
