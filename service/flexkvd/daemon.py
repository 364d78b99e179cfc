"""One life of the daemon: what runs behind the open socket, signals, drain, end.

Owns background work and how it all ends; the parts are made by `parts`. `main` runs it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

from flexkv_py.core.messages import DrainStarted, TicketCancelled, Tier
from flexkv_py.errors import FlexKVError
from flexkvd import socket_file, startup
from flexkvd.config import ApiTable, Config, read_token
from flexkvd.control import Operator
from flexkvd.parts import Parts, make_parts
from flexkvd.tickets import Ticket
from flexkvd.toml_tables import bad_config

log = logging.getLogger(__name__)

LAG_S = 1.0
"""How often the loop's lag is measured."""
DRAIN_LOOK_S = 0.02
SETTLE_S_MAX = 60.0
"""Longest that running transfers are waited for at the end; each has a deadline of its own."""
API_SOCKET_MODE = 0o600


async def serve(config: Config) -> int:
    """Serve until a signal or a failure. Returns the exit status; raises FlexKVError when it cannot serve."""
    async with AsyncExitStack() as stack:
        parts = await make_parts(config, stack)
        log.info("serves workers on %s", config.daemon.socket)
        daemon = Daemon(config, parts)
        daemon.install_signals()
        return await daemon.run()


class Daemon:
    """Runs parts that serve already, until told to stop."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self.operator = Operator(parts)
        self._config = config
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: BaseException | None = None
        self._background: set[asyncio.Task[None]] = set()
        parts.engine.on_broken = self._broken
        parts.sessions.on_ticket_finished = self._ticket_finished
        parts.readiness.on_ready = self._ready

    async def run(self) -> int:
        """0 after a drain, 1 after a bug; raises the FlexKVError that made it stop."""
        try:
            self._start_background(read_token(self._config.api.token_file, "[api] token_file"))
            await self._stop.wait()
            await self._drain()
        finally:
            await self._end()
        if isinstance(self._failure, FlexKVError):
            raise self._failure
        return 0 if self._failure is None else 1

    def stop(self) -> None:
        """Drain and end; called again: do not wait any longer."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    # ------------------------------------------------------------ background

    def _start_background(self, api_token: str) -> None:
        parts = self._parts
        parts.readiness.begin("start", lambda: "background work begins")
        if self._config.dram.populate:
            self._spawn(startup.populate(parts.arena, parts.readiness))
        for tier, (store, _) in parts.stores.items():
            read_in = startup.recover if tier is Tier.SSD else startup.reach
            self._spawn(read_in(tier, store, parts.engine, parts.readiness))
        if self._config.api.socket or self._config.api.host:
            self._spawn(self._serve_api(api_token))
        self._spawn(self._measure_lag())
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

    async def _serve_api(self, token: str) -> None:
        table = self._config.api
        with ExitStack() as stack:
            if table.host:
                listener = stack.enter_context(_listen_tcp(table))
            else:
                file = socket_file.listen(table.socket, API_SOCKET_MODE)
                stack.callback(file.close)
                listener = file.socket
            module = await asyncio.to_thread(importlib.import_module, "flexkvd.api")
            server = module.ApiServer(module.make_app(self.operator, token))
            log.info("serves the REST API on %s", f"{table.host}:{table.port}" if table.host else table.socket)
            await server.run_on(listener)

    async def _measure_lag(self) -> None:
        while True:
            due = self._loop.time() + LAG_S
            await asyncio.sleep(LAG_S)
            self.operator.metrics.loop_lagged(max(0.0, self._loop.time() - due))

    # ----------------------------------------------------------------- events

    def install_signals(self) -> None:
        """SIGTERM and SIGINT drain; only in a process of the daemon's own."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: nothing can be reloaded yet, restart instead")

    def _ticket_finished(self, ticket: Ticket) -> None:
        seconds = (self._parts.engine.now_ns() - ticket.opened_ns) / 1e9
        self.operator.metrics.ticket_ended(ticket.kind, seconds)

    def _ready(self) -> None:
        log.info("ready")
        startup.settle_heap()

    def _broken(self) -> None:
        self._fail(RuntimeError("the engine met a bug"))

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure
        self._hurry.set()
        self._stop.set()

    # -------------------------------------------------------------------- end

    async def _drain(self) -> None:
        """Admit nothing new, let tickets end until `drain_s` is over, then cancel what is left."""
        parts, drain_s = self._parts, self._config.daemon.drain_s
        parts.readiness.draining = True
        if parts.engine.broken:
            return
        log.info("draining for at most %g s", drain_s)
        parts.server.going_away("the daemon is stopping", round(drain_s * 1000))
        parts.engine.post(DrainStarted(parts.engine.now_ns()))
        deadline = self._loop.time() + drain_s
        while self._open_tickets() and self._loop.time() < deadline and not self._hurry.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), DRAIN_LOOK_S)
        for ticket in self._open_tickets():
            parts.engine.post(TicketCancelled(ticket.session, ticket.number, parts.engine.now_ns()))

    def _open_tickets(self) -> list[Ticket]:
        sessions = self._parts.sessions.by_number.values()
        return [ticket for session in sessions for ticket in session.tickets.values() if not ticket.over]

    async def _end(self) -> None:
        """Let clients and background work go, and wait for what still touches memory; the stack closes the rest."""
        parts = self._parts
        parts.server.close()
        for task in list(self._background):
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if parts.engine.broken else SETTLE_S_MAX):
                await parts.executor.settle()
        log.info("stopped")


def _listen_tcp(table: ApiTable) -> socket.socket:
    family = socket.AF_INET6 if ":" in table.host else socket.AF_INET
    try:
        return socket.create_server((table.host, table.port), family=family)
    except OSError as error:
        raise bad_config(
            f"the REST API cannot listen on {table.host} port {table.port} ({error.strerror}): choose another port"
        ) from error
