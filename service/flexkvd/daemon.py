"""One life of the daemon: what runs behind the open socket, signals, drain, end.

Owns background work and how it all ends; the parts are made by `parts`. `main` runs it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flexkv_py.core.messages import DrainStarted, Tier
from flexkv_py.errors import FlexKVError
from flexkv_tiers.base import TierFault
from flexkvd import socket_file, startup
from flexkvd.api.table import ApiTable
from flexkvd.api.tokens import Tokens
from flexkvd.config import Config
from flexkvd.inherited import Inherited
from flexkvd.notify import ServiceManager, Supervision
from flexkvd.parts import Parts, make_parts
from flexkvd.recorder.dumps import Dumps
from flexkvd.state_line import state_line
from flexkvd.toml_tables import bad_config

if TYPE_CHECKING:
    from flexkvd.control import Operator

log = logging.getLogger(__name__)

OUR_PACKAGES = {"flexkvd", "flexkv_tiers", "flexkv_py"}
LOOP_PACKAGES = {"asyncio", "uvloop"}
FAULTS = (TierFault, FlexKVError, OSError, asyncio.CancelledError)
"""What production must expect; anything else that reaches the loop is a bug."""
BUG_SOURCES = {"task", "handle"}
"""What the loop names beside an error of a task or a callback."""
DRAIN_LOOK_S = 0.02
API_SOCKET_MODE = 0o600


async def serve(config: Config) -> int:
    """Serve until a signal or a failure. Returns the exit status; raises FlexKVError when it cannot serve."""
    stop = Stop()
    stop.on_signals(asyncio.get_running_loop())  # before anybody can connect
    async with AsyncExitStack() as stack:
        manager = ServiceManager(Supervision.take(os.environ), asyncio.get_running_loop())
        stack.callback(manager.close)
        inherited = Inherited.take(os.environ)
        stack.callback(inherited.close)
        parts = await make_parts(config, stack, inherited=inherited)
        log.info("serves workers on %s", config.daemon.socket)
        daemon = Daemon(config, parts, stop, manager, inherited)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, daemon.dumps.on_signal)
        return await daemon.run()


class Stop:
    """Whether the daemon shall end: `asked` once to drain, asked again to `hurry`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        self.on_hangup: Callable[[], None] = lambda: log.info("SIGHUP: the start goes on with the file as it was read")

    def ask(self) -> None:
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()

    def hang_up(self) -> None:
        self.on_hangup()

    def on_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """SIGTERM and SIGINT drain, SIGHUP reloads; only in a process of the daemon's own."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)
        loop.add_signal_handler(signal.SIGHUP, self.hang_up)


class Daemon:
    """Runs parts that serve already, until told to stop."""

    operator: Operator

    def __init__(
        self,
        config: Config,
        parts: Parts,
        stop: Stop | None = None,
        manager: ServiceManager | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        from flexkvd.control import Operator  # noqa: PLC0415 - prometheus_client: workers need not wait for it

        self.operator = Operator(parts, config.api)
        self.dumps = Dumps(parts.recorder, _dump_directory(config), config.recorder.dumps_max)
        self._config = config
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._stop = stop or Stop()
        self._manager = manager or ServiceManager(Supervision(), self._loop)
        self._inherited = inherited or Inherited([])
        self._end_at_s = 0.0  # on the loop's clock: when the drain is over, whatever still runs
        self._failure: BaseException | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._loop.set_exception_handler(self._overheard)
        parts.engine.on_broken = self._broken
        parts.readiness.on_ready = self._ready
        parts.settings.listen(_set_log_level)
        self._stop.on_hangup = lambda: self._spawn(self._reload())

    async def run(self) -> int:
        """0 after a drain, 1 after a bug; raises the FlexKVError that made it stop."""
        try:
            self._start_background(Tokens.read(self._config.api.token_file))
            await self._stop.asked.wait()
            self._end_at_s = self._loop.time() + self._drain_s
            await self._drain()
        finally:
            await self._end()
        if isinstance(self._failure, FlexKVError):
            raise self._failure
        return 0 if self._failure is None else 1

    def stop(self) -> None:
        """Drain and end; called again: do not wait any longer."""
        self._stop.ask()

    @property
    def _drain_s(self) -> float:
        return self._parts.settings.config.daemon.drain_s

    # ------------------------------------------------------------ background

    def _start_background(self, tokens: Tokens) -> None:
        parts = self._parts
        parts.readiness.begin("start", lambda: "background work begins")
        self._manager.watch(partial(state_line, parts.readiness, parts.planner.state))
        if self._config.dram.populate:
            self._spawn(startup.populate(parts.arena, parts.readiness, parts.pinning.go_on))
        parts.pinning.begin()
        for tier, (store, _) in parts.stores.items():
            read_in = startup.recover if tier is Tier.SSD else startup.reach
            self._spawn(read_in(tier, store, parts.engine, parts.readiness))
        if self._config.api.socket or self._config.api.host:
            self._spawn(self._serve_api(tokens))
            self._spawn(self.operator.sampler.run())
        self._loop.call_soon(parts.readiness.end, "start")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            log.error("the daemon stops: %s", failure, exc_info=None if isinstance(failure, FlexKVError) else failure)
            self._fail(failure)

    async def _serve_api(self, tokens: Tokens) -> None:
        table = self._config.api
        with ExitStack() as stack:
            if table.host:
                listener = stack.enter_context(_listen_tcp(table))
            else:
                file = socket_file.listen(table.socket, API_SOCKET_MODE, self._inherited.claim("admin", table.socket))
                stack.callback(file.close)
                listener = file.socket
            module = await asyncio.to_thread(importlib.import_module, "flexkvd.api.server")
            app = await asyncio.to_thread(module.make_app, self.operator, tokens, self.operator.limits, table.host)
            server = module.ApiServer(app, table)
            log.info("serves the REST API on %s", f"{table.host}:{table.port}" if table.host else table.socket)
            await server.run_on(listener, self.operator.feed.close)

    # ----------------------------------------------------------------- events

    def _ready(self) -> None:
        behind = ", ".join(self._parts.readiness.steps)
        log.info("ready%s", f", {behind} is still to come" if behind else "")
        self._manager.ready()
        startup.settle_heap()

    def _overheard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop met an error that nobody awaits: of a task or callback of ours it is a bug, and ends the daemon.

        Not what comes of a connection, of which the loop tells by its transport: no client ends the daemon.
        """
        loop.default_exception_handler(context)
        error = context.get("exception")
        if error is not None and BUG_SOURCES & context.keys() and _is_bug(error):
            self._parts.engine.fail(error)

    def _broken(self) -> None:
        failure = self._parts.engine.failure
        self._parts.faults.note("bug", detail=repr(failure))
        self.dumps.on_bug(failure)
        self._fail(RuntimeError("the engine met a bug"))

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure
        self._stop.hurry.set()
        self._stop.asked.set()

    async def _reload(self) -> None:
        """Do what the file says now; a file that is refused changes nothing."""
        with self._manager.reloading():
            try:
                log.info("reloaded: %s", await self._parts.settings.reload())
            except FlexKVError as error:
                log.error("the configuration stays as it is: %s", error)

    # -------------------------------------------------------------------- end

    async def _drain(self) -> None:
        """Admit nothing new, let tickets end until `drain_s` is over, then cancel what is left."""
        parts = self._parts
        parts.readiness.draining, parts.readiness.drain_reason = True, "the daemon is stopping"
        self._manager.stopping(self._drain_s)
        if parts.engine.broken:
            return
        log.info("draining for at most %g s", self._drain_s)
        parts.server.going_away("the daemon is stopping", round(self._drain_s * 1000))
        parts.engine.post(DrainStarted(parts.engine.now_ns()))
        parts.pinning.let_go()
        while parts.sessions.busy and self._loop.time() < self._end_at_s and not self._stop.hurry.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.hurry.wait(), DRAIN_LOOK_S)
        parts.sessions.cancel_tickets()

    async def _end(self) -> None:
        """Let clients, running transfers and background work go; the stack closes the rest."""
        parts = self._parts
        parts.executor.close_lanes()  # whoever sees its socket closed believes that no copy touches its pages any more
        parts.server.close()
        await self.operator.close()
        parts.engine.close()
        parts.executor.close()
        if not parts.engine.broken and not self._stop.hurry.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._end_at_s):
                    await parts.executor.settle()
            await self._let_go()
        for task in self._background:
            task.cancel()
        # A cancelled listing or check goes on until its bytes are at rest: closing the tiers sees to that.
        closing = [self._loop.create_task(store.close()) for store, _ in parts.stores.values()]
        if ending := [*self._background, *closing]:
            await asyncio.wait(ending)
        for task in closing:
            if (error := task.exception()) is not None:
                self._failure = self._failure or error
                log.error("a tier did not close: %s", error, exc_info=error)
        log.info("stopped")

    async def _let_go(self) -> None:
        """Wait for the arena to be un-pinned, while there is time and nobody is in a hurry."""
        waiting = [self._loop.create_task(each) for each in (self._parts.pinning.settled(), self._stop.hurry.wait())]
        await asyncio.wait(
            waiting, timeout=max(0.0, self._end_at_s - self._loop.time()), return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()


def _set_log_level(config: Config) -> None:
    logging.getLogger().setLevel(config.daemon.log_level.upper())


def _dump_directory(config: Config) -> Path | None:
    named = config.recorder.directory or config.daemon.state_directory
    return Path(named) if named else None


def _is_bug(error: BaseException) -> bool:
    """Whether an error is no fault, and was raised by what the loop itself called of our packages."""
    trace = error.__traceback__
    while trace is not None and _package(trace) in LOOP_PACKAGES:
        trace = trace.tb_next
    return trace is not None and _package(trace) in OUR_PACKAGES and not isinstance(error, FAULTS)


def _package(trace: TracebackType) -> str:
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _listen_tcp(table: ApiTable) -> socket.socket:
    family = socket.AF_INET6 if ":" in table.host else socket.AF_INET
    try:
        return socket.create_server((table.host, table.port), family=family)
    except OSError as error:
        raise bad_config(
            f"the REST API cannot listen on {table.host} port {table.port} ({error.strerror}): choose another port"
        ) from error
