"""The composition root: every part of the daemon is made here and handed what it needs.

Owns the order in which parts are made and, by the exit stack, the reverse order in which they are
closed. When `make_parts` returns, workers can connect.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import Tier
from flexkv_py.core.planner import Planner
from flexkv_tiers.base import SharedStore
from flexkv_tiers.lanes import CpuLanes
from flexkv_tiers.memory import Arena
from flexkvd import socket_file
from flexkvd.codecs import Codecs
from flexkvd.config import Config, read_token
from flexkvd.devices import Devices
from flexkvd.engine import Engine
from flexkvd.executor import Executor
from flexkvd.faults import FaultLog
from flexkvd.frame_check import check_frames
from flexkvd.inherited import Inherited
from flexkvd.lag import LagProbe
from flexkvd.live_rules import LiveRules
from flexkvd.operations import Operations
from flexkvd.pinning import Pinning
from flexkvd.planning import make_planner, planner_config
from flexkvd.readiness import Readiness
from flexkvd.recorder.ring import Recorder
from flexkvd.requests import Requests
from flexkvd.reset_log import ResetLog
from flexkvd.resets import Resets
from flexkvd.row_path import SHARED, RowPath
from flexkvd.server import Gate, Server
from flexkvd.sessions import Sessions
from flexkvd.settings import Settings
from flexkvd.store_events import StoreEvents
from flexkvd.stores import Stores, make_stores
from flexkvd.tenant_log import TenantLog
from flexkvd.tenants import Tenants
from flexkvd.usage import Usage

BOOT_BYTES = 16


@dataclass(frozen=True)
class Parts:
    """The parts of a daemon that serves."""

    boot: bytes
    planner: Planner
    engine: Engine
    sessions: Sessions
    executor: Executor
    server: Server
    arena: Arena
    devices: Devices
    pinning: Pinning
    stores: Stores
    readiness: Readiness
    resets: Resets
    row_path: RowPath
    lag: LagProbe
    operations: Operations
    settings: Settings
    usage: Usage
    faults: FaultLog
    recorder: Recorder
    tenants: Tenants


async def make_parts(
    config: Config,
    stack: AsyncExitStack,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    inherited: Inherited | None = None,
) -> Parts:
    """Make everything workers need; what is made is closed by `stack`. Raises FlexKVError.

    The directory is locked before the socket answers, so a second daemon serves nobody.
    """
    loop, told = asyncio.get_running_loop(), planner_config(config)
    token = read_token(config.daemon.token_file, "[daemon] token_file")
    boot = secrets.token_bytes(BOOT_BYTES)
    arena, devices = _make_memory(config, told.dram_segments, stack)
    lag = LagProbe(loop)
    stack.callback(lag.close)
    planner = make_planner(told)
    engine = Engine(planner, loop, clock_ns)
    stack.callback(engine.close)
    faults, recorder = FaultLog(loop.time), _make_recorder(config, planner, engine, stack)
    readiness = Readiness()
    pinning = Pinning(devices.pinned, arena, devices.guard, readiness, loop, populates=config.dram.populate)
    stack.callback(pinning.close)
    codecs, stores = await _make_stores(config, arena, partial(StoreEvents, engine, readiness, faults), stack)
    sessions = Sessions(engine, config.limits)
    usage = Usage(sessions, engine.now_ns, config.limits.metrics_tenants_max)
    sessions.listen(lambda session: codecs.introduce(session.namespace.digest, session.geometry))
    tenants = _make_tenants(config, told, planner, engine, sessions, stack)
    check = partial(check_frames, arena) if config.row_path.arena == SHARED else None
    executor = Executor(engine, sessions, devices.lanes, stores, loop, check, faults)
    resets = _make_resets(config, engine, sessions, stores, stack)
    row_path = RowPath(engine, sessions, arena, config, loop, faults)
    stack.callback(row_path.close)
    operations, settings = Operations(engine, planner, sessions, readiness), Settings(config)
    operations.on_drain, operations.on_resume = pinning.let_go, pinning.begin
    settings.listen(LiveRules(told, operations))
    settings.listen(tenants.adopt)
    requests = Requests(engine, sessions, config.limits, told.tiers, resets, row_path, devices, loop)
    listener = _listen(config, inherited, stack)
    gate, segment_bytes = Gate.of(config.daemon, os.getuid(), token), config.dram.segment_bytes
    server = Server(listener, requests, sessions, gate, config.limits, boot, segment_bytes, loop, faults)
    stack.callback(server.close)
    operations.tenant_of = tenants.name_of
    return Parts(
        boot=boot, planner=planner, engine=engine, sessions=sessions, executor=executor, server=server, arena=arena,
        devices=devices, pinning=pinning, stores=stores, readiness=readiness, resets=resets, row_path=row_path, lag=lag,
        operations=operations, settings=settings, usage=usage, faults=faults, recorder=recorder, tenants=tenants,
    )  # fmt: skip


def _make_tenants(
    config: Config, told: PlannerConfig, planner: Planner, engine: Engine, sessions: Sessions, stack: AsyncExitStack
) -> Tenants:
    """Tenants; what earlier lives knew of them holds from now on."""
    tenants = Tenants(planner.state, engine, told.quotas, _tenant_log(config))
    stack.push_async_callback(tenants.close)
    tenants.go_on()
    sessions.listen(tenants.opened)
    return tenants


def _make_resets(config: Config, engine: Engine, sessions: Sessions, stores: Stores, stack: AsyncExitStack) -> Resets:
    """Resets; those of the last life go on."""
    shared = {tier.name.lower(): store for tier, (store, _) in stores.items() if isinstance(store, SharedStore)}
    resets = Resets(engine, sessions, shared, _reset_log(config), asyncio.get_running_loop())
    stack.callback(resets.close)
    resets.go_on()
    return resets


def _listen(config: Config, inherited: Inherited | None, stack: AsyncExitStack) -> socket.socket:
    """The worker socket."""
    given = inherited.claim("worker", config.daemon.socket) if inherited else None
    file = socket_file.listen(config.daemon.socket, config.daemon.socket_mode, given)
    stack.callback(file.close)
    return file.socket


def _make_recorder(config: Config, planner: Planner, engine: Engine, stack: AsyncExitStack) -> Recorder:
    """The flight recorder; it hears of every event from now on, unless it has no room for any."""
    recorder = Recorder(planner, config.recorder.bytes, engine.now_ns)
    stack.callback(recorder.close)
    if config.recorder.bytes:
        engine.on_event = recorder.note
    return recorder


def _make_memory(config: Config, segments: int, stack: AsyncExitStack) -> tuple[Arena, Devices]:
    """The arena, and what copies between it and the memory of workers."""
    dram = config.dram
    arena = Arena(dram.segment_bytes, segments, huge_pages=dram.huge_pages)
    stack.callback(arena.close)
    lanes = CpuLanes(arena, threads=dram.copy_threads, bytes_in_flight_max=dram.copies_in_flight_bytes_max)
    stack.callback(lanes.close)
    devices = Devices(config.cuda, arena, lanes)
    stack.callback(devices.close)
    return arena, devices


async def _make_stores(
    config: Config, arena: Arena, listen: Callable[[Tier], StoreEvents], stack: AsyncExitStack
) -> tuple[Codecs, Stores]:
    """The tiers below DRAM and what compresses for them; the directories of the SSD tier are locked."""
    codecs = Codecs.make(config, arena)
    stack.push_async_callback(codecs.close)
    await codecs.start()
    stores = make_stores(config, arena, codecs, listen)
    for store, _ in stores.values():
        stack.push_async_callback(store.close)
    if Tier.SSD in stores:
        await stores[Tier.SSD][0].start()
    return codecs, stores


def _reset_log(config: Config) -> ResetLog | None:
    directories = _state_directories(config)
    return ResetLog(directories) if directories else None


def _tenant_log(config: Config) -> TenantLog | None:
    directories = _state_directories(config)
    return TenantLog(directories) if directories else None


def _state_directories(config: Config) -> list[Path]:
    """Where what must outlive a restart is kept: as configured, else with the SSD tier, which outlives one too."""
    ssd = config.ssd.directory if config.ssd else ()
    return [Path(each) for each in ((config.daemon.state_directory,) if config.daemon.state_directory else ssd)]
