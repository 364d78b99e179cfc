"""Tenants of a whole daemon: what REST says of them, quotas set live, names over restarts, ends of blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.config import Config, TenantTable, load_config
from flexkvd.settings import Settings
from flexkvd.tenant_log import FILE_NAME, TenantLog
from tests.trials.fleet import until

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_api import over

BLOCK_BYTES = GEOMETRY.block_bytes


def save(daemon: DaemonThread, tenant: str, count: int, **hints: Any) -> list[Outcome]:
    """A chain of blocks of one tenant, down to the lowest tier asked for."""
    with Client(daemon.socket, GEOMETRY, tenant=tenant) as client:
        worker = Worker(client, count)
        keys = client.keys(list(range(16 * count)))
        ticket = client.save(keys, worker.pages(0, count), worker.memory, **hints)
        return list(ticket.wait(timeout_s=30).outcomes)


def facts(daemon: DaemonThread, name: str) -> dict[str, Any]:
    with over(daemon.admin) as api:
        return next(each for each in api.get("/v1/tenants").json()["tenants"] if each["name"] == name)


def test_names_and_quotas_outlive_the_daemon(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """What lies on SSD counts for its tenant before any session has come, and a quota set live still holds."""
    tables: dict[str, dict[str, object]] = {
        "ssd": {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"},
        "api": {"socket": str(tmp_path / "admin.sock")},
    }
    daemon = start(**tables)
    assert save(daemon, "ann/b", 4, ack="ssd") == [Outcome.STORED] * 4
    body = {"dram_bytes": 2 * BLOCK_BYTES, "weight": 2.5}
    with over(daemon.admin) as api:
        answer = api.put("/v1/tenants/ann%2Fb/quota", json=body)
        assert answer.json()["quota"] == body | {"ssd_bytes": 0, "s3_bytes": 0}, answer.text
        assert api.put("/v1/tenants/ann%2Fb/quota", json={"weight": 0}).status_code == 400
    until(lambda: facts(daemon, "ann/b")["used"]["dram"] <= 2 * BLOCK_BYTES, "the quota holds")
    used = facts(daemon, "ann/b")["used"]["ssd"]
    assert daemon.stop() == 0
    daemon = start(**tables)
    until(lambda: facts(daemon, "ann/b")["used"]["ssd"] == used > 0, "what is found counts for its tenant")
    with over(daemon.admin) as api:
        assert api.get("/v1/tenants/ann/b").json()["quota"]["weight"] == 2.5
        assert api.delete("/v1/tenants/ann/b/quota").json()["quota"]["weight"] == 1.0
        assert api.get("/v1/tenants/nobody").status_code == 404


def test_quotas_set_at_once_are_all_kept(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Each that was acknowledged holds in the next life, also one that gives nothing; each can be taken away again."""
    tables = {"daemon": {"state_directory": str(tmp_path / "state")}, "api": {"socket": str(tmp_path / "admin.sock")}}
    wanted = {f"t{number}": {"dram_bytes": number << 20} for number in range(12)}
    daemon = start(**tables)
    with over(daemon.admin) as api, ThreadPoolExecutor(len(wanted)) as pool:
        put = [pool.submit(api.put, f"/v1/tenants/{name}/quota", json=body) for name, body in wanted.items()]
        assert [each.result().status_code for each in put] == [200] * len(wanted)
    assert daemon.stop() == 0
    daemon = start(**tables)
    with over(daemon.admin) as api:
        known = {each["name"]: each["quota"]["dram_bytes"] for each in api.get("/v1/tenants").json()["tenants"]}
        assert known == {name: body["dram_bytes"] for name, body in wanted.items()}
        assert [api.delete(f"/v1/tenants/{name}/quota").status_code for name in wanted] == [200] * len(wanted)
        assert api.get("/v1/tenants").json() == {"tenants": []}


def test_quotas_of_the_file_change_with_a_reload(tmp_path: Path) -> None:
    """All of them are live: set, changed and taken away by what the file says now; the reload names whose."""
    path = tmp_path / "flexkvd.toml"
    path.write_text('[tenants.ann]\ndram_bytes = "1GiB"\n[tenants."b.c"]\nweight = 2\n')
    settings, heard = Settings(load_config(path)), list[Config]()
    settings.listen(heard.append)
    path.write_text('[tenants.ann]\ndram_bytes = "2GiB"\n')
    assert asyncio.run(settings.reload()).changed == ("tenants.ann", "tenants.b.c")
    assert heard[-1].tenants == {"ann": TenantTable(dram_bytes=2 << 30)}
    path.write_text('[tenants.ann]\nbytes = "2GiB"\n')
    with pytest.raises(FlexKVError, match=r"\[tenants.ann\] has no key 'bytes'"):
        asyncio.run(settings.reload())


def test_a_block_is_gone_when_its_time_has_ended(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """From DRAM and from SSD, and its story says why; both priorities at once are refused."""
    daemon = start(ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"})
    assert save(daemon, "ann", 2, ack="ssd", retention_s=0.5, low_priority=True) == [Outcome.STORED] * 2
    state = daemon.parts.planner.state
    until(lambda: daemon.call(lambda: sum(len(index.blocks) for index in state.indexes.values())) == 0, "it is dropped")
    assert daemon.call(lambda: state.counters["expired", "ssd"]) == 2
    with pytest.raises(FlexKVError) as refused:
        save(daemon, "ann", 1, high_priority=True, low_priority=True)
    assert refused.value.code is ErrorCode.BAD_ARGUMENT


def test_a_list_of_tenants_that_is_none_is_refused(tmp_path: Path) -> None:
    """Quotas would silently be gone; the error names the file and the cure."""
    (tmp_path / FILE_NAME).write_text('{"format": "something else"}')
    with pytest.raises(FlexKVError, match="no list of tenants of this version") as refused:
        TenantLog([tmp_path])
    assert refused.value.code is ErrorCode.DIRECTORY_FOREIGN
