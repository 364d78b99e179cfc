"""Tenants for an operator: who they are, what each uses and may use; quotas set live, kept over restarts.

Owns no account: the planner has those. Hears of sessions from `sessions`, and keeps names and quotas in `tenant_log`.
Called by the REST API and by a reload of the configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flexkv_py.core.messages import NamespacesNamed, QuotaChanged
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NamespaceDigest
from flexkv_py.tenants.owner import NO_QUOTA, Quota
from flexkv_py.tenants.shelf import Tenant
from flexkvd.config import NAME_CHARS_MAX, Config
from flexkvd.engine import Engine
from flexkvd.planning import quota_of
from flexkvd.sessions import Session
from flexkvd.tenant_log import TenantLog

log = logging.getLogger(__name__)

WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0
QUOTA_BYTES_MAX = 1 << 60


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """One tenant: bytes and copies by tier; hits and misses of matches, in keys; running totals of this life.

    `used` has every byte that counts for the tenant, `blocks` the copies that stand in order: neither read nor written.

    `kind` is `named`, or says what has no name and is no tenant: `unknown` (found at start, and no session has named
    its namespace yet), `others` (came when `tenants_max` were known).
    """

    name: str
    kind: str
    quota: Quota
    used: Mapping[str, int]
    blocks: Mapping[str, int]
    hits: int
    misses: int
    saved_bytes: int
    refused: int
    throttled: int
    evictions: int


class Tenants:
    """See the module's docstring."""

    def __init__(self, state: State, engine: Engine, base: Mapping[str, Quota], tenant_log: TenantLog | None) -> None:
        """`base`: quotas of the configuration. Without `tenant_log` a restart forgets names and what was set live."""
        self._state = state
        self._engine = engine
        self._base = dict(base)
        self._log = tenant_log
        self._live = tenant_log.quotas if tenant_log is not None else {}
        self._writing: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()  # a change starts from all that went before it, written down or refused

    def go_on(self) -> None:
        """Tell the planner what earlier lives knew, before anything they left is found."""
        if self._log is not None:
            self._engine.post(NamespacesNamed(list(self._log.names.items()), self._engine.now_ns()))
            for name, quota in self._live.items():
                self._engine.post(QuotaChanged(name, quota, self._engine.now_ns()))

    def opened(self, session: Session) -> None:
        """A session says whose its namespace is."""
        if self._log is not None and self._log.learn(session.namespace.digest, session.hello.tenant):
            task = asyncio.get_running_loop().create_task(self._write_soon())
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def list(self) -> Sequence[TenantFacts]:
        """All that have a quota, a session or a block."""
        known = {owner.name for owner in self._state.tenants}
        quotas = self._live | self._state.tenants.quotas
        absent = [Tenant(name, quota) for name, quota in quotas.items() if name not in known]
        return [self._facts(owner) for owner in (*self._state.tenants, *absent)]

    def get(self, name: str) -> TenantFacts:
        """One by its name. Raises FlexKVError(NOT_FOUND)."""
        found = next((facts for facts in self.list() if facts.kind == "named" and facts.name == name), None)
        if found is None:
            raise FlexKVError(
                ErrorCode.NOT_FOUND,
                f"no tenant {name!r} has a session, a block or a quota here: GET /v1/tenants has those that do",
            )
        return found

    async def put(self, name: str, quota: Quota) -> TenantFacts:
        """Set a quota from now on, and over restarts. Raises FlexKVError."""
        _check(name, quota)
        async with self._changing:
            kept = self._state.tenants.quotas.keys() | self._live.keys() | {name}
            if len(kept) > self._state.config.tenants_max:
                raise FlexKVError(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"{len(kept) - 1} tenants have quotas ([limits] tenants_max): take some away, or raise the limit",
                )
            await self._keep({**self._live, name: quota})
            self._engine.post(QuotaChanged(name, quota, self._engine.now_ns()))
        return self._facts(self._state.tenants.find(name) or Tenant(name, quota))

    async def delete(self, name: str) -> TenantFacts:
        """Back to what the configuration says of it; its facts as they were. Raises FlexKVError."""
        async with self._changing:
            before = self.get(name)
            if name in self._live:
                await self._keep({known: live for known, live in self._live.items() if known != name})
            quota = self._base.get(name, NO_QUOTA)
            self._engine.post(QuotaChanged(name, quota, self._engine.now_ns()))
        return replace(before, quota=quota)

    def adopt(self, config: Config) -> None:
        """The configuration is this now. What was set live stays."""
        base = {name: quota_of(table) for name, table in config.tenants.items()}
        names = [name for name in {**self._base, **base} if self._base.get(name) != base.get(name)]
        self._base = base
        for name in names:
            if name not in self._live:
                self._engine.post(QuotaChanged(name, base.get(name, NO_QUOTA), self._engine.now_ns()))

    def name_of(self, namespace: NamespaceDigest) -> str:
        """Whose a namespace is; empty when no session has said so yet."""
        return self._state.tenants.name_of(namespace)

    async def _keep(self, live: dict[str, Quota]) -> None:
        """Write down what is set live, or leave it as it was. Raises FlexKVError(CONFLICT)."""
        if self._log is not None:
            before, self._log.quotas = self._log.quotas, live
            try:
                await self._log.write()
            except OSError as error:
                self._log.quotas = before
                raise FlexKVError(
                    ErrorCode.CONFLICT,
                    f"the quota cannot be written down ({error.strerror}), so it stays as it was: see to the disk of "
                    "daemon.state_directory (or of the SSD tier) and set it again",
                ) from error
        self._live = live

    async def close(self) -> None:
        """What is being written down is written."""
        await asyncio.gather(*self._writing)

    async def _write_soon(self) -> None:
        assert self._log is not None
        try:
            await self._log.write()
        except OSError as error:
            log.warning("whose namespaces are whose cannot be written down, so a restart forgets it: %s", error)

    def _facts(self, owner: Tenant) -> TenantFacts:
        levels = self._state.levels.items()
        shelves = {level.word: owner.shelves[tier] if owner.shelves else None for tier, level in levels}
        counted = owner.counters.get
        return TenantFacts(
            name=owner.name if isinstance(owner.name, str) else "",
            kind="named" if isinstance(owner.name, str) else owner.name.value,
            quota=owner.quota,
            used={tier: shelf.used_bytes if shelf else 0 for tier, shelf in shelves.items()},
            blocks={tier: shelf.count if shelf else 0 for tier, shelf in shelves.items()},
            hits=counted(("matched_keys", "hit"), 0),
            misses=counted(("matched_keys", "miss"), 0),
            saved_bytes=counted(("saved_bytes", "dram"), 0),
            refused=counted(("save_keys", "refused"), 0),
            throttled=counted(("save_keys", "throttled"), 0),
            evictions=sum(owner.evictions),
        )


def _check(name: str, quota: Quota) -> None:
    if len(name) > NAME_CHARS_MAX:
        why = f"the name has {len(name)} characters: a tenant's has at most {NAME_CHARS_MAX}"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    sizes = (quota.dram_bytes, quota.ssd_bytes, quota.s3_bytes)
    if not all(0 <= size <= QUOTA_BYTES_MAX for size in sizes) or not WEIGHT_MIN <= quota.weight <= WEIGHT_MAX:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"a quota is bytes from 0 (none) to {QUOTA_BYTES_MAX}, its weight from {WEIGHT_MIN} to {WEIGHT_MAX:g}: "
            f"{quota} is not",
        )
