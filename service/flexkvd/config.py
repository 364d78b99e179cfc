"""The daemon's configuration: every key with its default, range and meaning.

Owns the tables, those of the tiers below DRAM in `tier_tables` and the API's in `api.table`; `toml_tables` owns how
values are read, `main` where the file is. A table `[ssd]` or `[s3]` that is absent means that tier is absent. Every
limit of the daemon is a key here.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from flexkv_py.core.policies import POLICIES
from flexkvd.api.table import ApiTable
from flexkvd.tier_tables import DAY_S, GIB, KIB, MIB, CodecTable, S3Table, SsdTable
from flexkvd.toml_tables import Kind, TableT, bad_config, key, keys_of, nearest, read_table

ID_MAX = (1 << 32) - 2
NAME_CHARS_MAX = 256
"""Of names that clients and operators give."""


@dataclass(frozen=True)
class DaemonTable:
    """[daemon]: the worker socket and who may use it."""

    socket: str = key(Kind.TEXT, "Unix socket that workers connect to.", "/run/flexkvd/worker.sock", low=1)
    socket_mode: int = key(Kind.COUNT, "File mode of the worker socket, octal.", 0o660, high=0o777)
    uids: tuple[int, ...] = key(
        Kind.INTEGERS,
        "Users let in without a token. The daemon's own user is, unless a token file is set.",
        (),
        high=ID_MAX,
    )
    gids: tuple[int, ...] = key(Kind.INTEGERS, "Primary groups let in without a token.", (), high=ID_MAX)
    token_file: str = key(
        Kind.TEXT, "File whose first line every other worker must present in hello; empty: no token is accepted.", ""
    )
    state_directory: str = key(
        Kind.TEXT,
        "Directory in which resets are written down until they are carried out, and whose namespaces are whose, so "
        "that a restart goes on with them; empty: those of the SSD tier. Without either a restart forgets them.",
        "",
    )
    drain_s: float = key(
        Kind.NUMBER, "Time SIGTERM leaves running tickets and promised flushes.", 20.0, high=DAY_S, live=True
    )
    log_level: str = key(
        Kind.TEXT, "Least severe line that is logged.", "info", choices=("debug", "info", "warning", "error"), live=True
    )


@dataclass(frozen=True)
class DramTable:
    """[dram]: the arena."""

    bytes: int = key(Kind.SIZE, "Size of the arena, a multiple of segment_bytes.", 4 * GIB, low=MIB, high=8 << 40)
    segment_bytes: int = key(
        Kind.SIZE,
        "Size of one memfd segment; no chunk can be larger. A multiple of 2 MiB lets huge pages in.",
        64 * MIB,
        low=MIB,
        high=GIB,
    )
    huge_pages: bool = key(Kind.SWITCH, "Ask for huge pages; without them the arena works all the same.", True)
    populate: bool = key(Kind.SWITCH, "Touch every page in the background at start.", True)
    copy_threads: int = key(Kind.COUNT, "Threads that copy between workers and the arena.", 2, low=1, high=64)
    copies_in_flight_bytes_max: int = key(
        Kind.SIZE,
        "Being copied at a time by all threads: what a load may have to wait for.",
        4 * MIB,
        low=64 * KIB,
        high=GIB,
    )


@dataclass(frozen=True)
class CudaTable:
    """[cuda]: workers whose KV lies on devices."""

    mode: str = key(
        Kind.TEXT,
        "Whether device memory may be registered, and the arena is pinned: where there is a driver, always, or never.",
        "auto",
        choices=("auto", "on", "off"),
    )
    copies_in_flight_bytes_max: int = key(
        Kind.SIZE, "Submitted to a device at a time, each way: what a load may wait for.", 32 * MIB, low=MIB, high=GIB
    )


@dataclass(frozen=True)
class PlannerTable:
    """[planner]: what is kept where."""

    policy: str = key(
        Kind.TEXT,
        "Order of eviction: least recently used, S3-FIFO, or LRU that learns to keep blocks used once to a share.",
        "adaptive",
        choices=tuple(POLICIES),
        live=True,
    )
    admission: str = key(
        Kind.TEXT,
        "What may go below DRAM: every block, or one seen a second time.",
        "always",
        choices=("always", "second-use"),
        live=True,
    )
    ssd_hits_min: int = key(
        Kind.COUNT,
        "Uses (the save is one) before a block may go to SSD; 0: as `admission` says.",
        0,
        high=255,
        live=True,
    )
    s3_hits_min: int = key(Kind.COUNT, "The same for S3.", 0, high=255, live=True)
    clean_ahead: float = key(
        Kind.NUMBER,
        "Share of DRAM (and of SSD, with S3 below it) kept free or already copied below.",
        0.25,
        high=0.99,
        live=True,
    )
    dram_clean_ahead: float = key(
        Kind.NUMBER, "The same for DRAM alone; -1: as `clean_ahead`.", -1.0, low=-1, high=0.99, live=True
    )
    ssd_clean_ahead: float = key(
        Kind.NUMBER, "The same for SSD alone; -1: as `clean_ahead`.", -1.0, low=-1, high=0.99, live=True
    )


@dataclass(frozen=True)
class RowPathTable:
    """[row_path]: workers that read single rows of the arena by themselves."""

    arena: str = key(
        Kind.TEXT,
        "How a worker may map the arena; `shared`: writable, so all workers are trusted with each other's bytes, and "
        "checksums are verified again when a block leaves DRAM.",
        "read-only",
        choices=("read-only", "shared"),
    )
    policy: str = key(
        Kind.TEXT,
        "Which chunks of running requests leave DRAM first, and which come back ahead of need.",
        "sparse",
        choices=("lru", "lfu", "sparse"),
        live=True,
    )
    requests_per_session_max: int = key(Kind.COUNT, "Requests attached by one client.", 1024, low=1, high=65_536)
    blocks_per_request_max: int = key(Kind.COUNT, "Blocks of one request.", 65_536, low=1, high=1 << 20)
    blocks_per_session_max: int = key(
        Kind.COUNT, "Blocks of all requests of one client; each takes some 300 bytes.", 4_194_304, low=1, high=1 << 28
    )
    ack_s_max: float = key(
        Kind.NUMBER, "A worker that acknowledges no revocation for so long loses its session.", 5.0, low=0.01, high=3600
    )
    replay_s_max: float = key(
        Kind.NUMBER, "What a failed step needs comes within this, or is refused.", 5.0, low=0.01, high=3600
    )
    absent_replays_max: int = key(
        Kind.COUNT, "A step that fails more often in a row is refused.", 64, low=1, high=1_000
    )
    pinned_share_max: float = key(Kind.NUMBER, "Share of DRAM for what one failed step needs.", 0.5, low=0.01, high=1)


@dataclass(frozen=True)
class RecorderTable:
    """[recorder]: the flight recorder, which keeps what the planner was told."""

    bytes: int = key(Kind.SIZE, "Memory for the newest events; 0: nothing is recorded.", 64 * MIB, high=64 * GIB)
    directory: str = key(
        Kind.TEXT,
        "Directory for the dumps written when the daemon meets a bug, and on SIGUSR2; empty: [daemon] state_directory. "
        "Without either none is written.",
        "",
    )
    dumps_max: int = key(Kind.COUNT, "Dumps kept there; the oldest goes first.", 4, low=1, high=1_000)


@dataclass(frozen=True)
class LimitsTable:
    """[limits]: the size of every queue."""

    sessions_max: int = key(Kind.COUNT, "Connected clients.", 256, low=1, high=65_536)
    tickets_per_session_max: int = key(Kind.COUNT, "Running tickets of one client.", 1024, low=1, high=65_536)
    tickets_kept_per_session_max: int = key(
        Kind.COUNT, "Finished tickets of one client that can still be asked about.", 4096, low=1, high=1 << 20
    )
    leases_per_session_max: int = key(Kind.COUNT, "Leases of one client.", 1024, low=1, high=65_536)
    memories_per_session_max: int = key(Kind.COUNT, "Registered memories of one client.", 16, low=1, high=256)
    memory_bytes_max: int = key(Kind.SIZE, "Size of one registered memory.", 1 << 40, low=4 * KIB, high=1 << 50)
    requests_per_session_max: int = key(Kind.COUNT, "Requests of one client that wait.", 4096, low=1, high=1 << 20)
    keys_per_message_max: int = key(Kind.COUNT, "Keys in one message.", 32_768, low=1, high=131_072)
    keys_per_event_max: int = key(
        Kind.COUNT, "Keys of a load or save placed before others get a turn.", 16, low=1, high=32_768
    )
    hold_s_max: float = key(Kind.NUMBER, "Longest a lease lives.", 600.0, low=0.001, high=DAY_S)
    deadline_s_default: float = key(Kind.NUMBER, "Deadline of a ticket that names none.", 10.0, low=0.001, high=DAY_S)
    deadline_s_max: float = key(Kind.NUMBER, "Longest deadline or wait to ask for.", 600.0, low=0.001, high=DAY_S)
    hello_s_max: float = key(Kind.NUMBER, "Time a connection has to say hello.", 5.0, low=0.01, high=3600)
    write_buffer_bytes_max: int = key(
        Kind.SIZE, "Replies kept for a client that does not read; more closes it.", 8 * MIB, low=64 * KIB, high=GIB
    )
    allocation_waiters_max: int = key(Kind.COUNT, "Blocks that wait for room in DRAM.", 65_536, low=1, high=1 << 24)
    demotions_in_flight_max: int = key(Kind.COUNT, "Blocks on their way down to one tier.", 1024, low=1, high=65_536)
    demotion_bytes_in_flight_max: int = key(
        Kind.SIZE,
        "The same in bytes; four may be under way at any size.",
        64 * MIB,
        low=4 * KIB,
        high=1 << 40,
    )
    promotions_in_flight_max: int = key(
        Kind.COUNT, "Blocks on their way up; only loads use the second half.", 1024, low=1, high=65_536
    )
    promotion_bytes_in_flight_max: int = key(
        Kind.SIZE,
        "The same in bytes; four may be under way at any size.",
        256 * MIB,
        low=4 * KIB,
        high=1 << 40,
    )
    flush_in_flight_max: int = key(Kind.COUNT, "Blocks of one flush on their way down.", 1024, low=1, high=65_536)
    demotion_faults_max: int = key(
        Kind.COUNT, "A block whose demotion failed so often may leave DRAM without a copy below.", 2, low=1, high=1000
    )
    retry_after_s: float = key(
        Kind.NUMBER, "What a throttled save is told to wait.", 0.05, low=0.001, high=60, live=True
    )
    tenants_max: int = key(
        Kind.COUNT, "Tenants known by name; those that come later count as one.", 1024, low=1, high=65_536
    )
    pins_max: int = key(Kind.COUNT, "Copies the operator may pin at a time.", 16_384, low=1, high=1 << 20)
    pinned_share_max: float = key(Kind.NUMBER, "Share of DRAM the operator may pin.", 0.5, low=0.0, high=1)
    metrics_tenants_max: int = key(
        Kind.COUNT,
        "Tenants that have metrics of their own: the most used. The rest are counted together.",
        50,
        high=1000,
    )
    story_events_max: int = key(Kind.COUNT, "Lines kept of all blocks' stories.", 65_536, low=1, high=1 << 24)


@dataclass(frozen=True)
class TenantTable:
    """[tenants.NAME]: what the tenant of that name may use; 0 = as much as is its share."""

    dram_bytes: int = key(Kind.SIZE, "Frames that its blocks may take in DRAM; 0: no quota.", 0, high=8 << 40)
    ssd_bytes: int = key(Kind.SIZE, "Records that it may have on SSD; 0: no quota.", 0, high=1 << 50)
    s3_bytes: int = key(Kind.SIZE, "Records that it may have in S3; 0: no quota.", 0, high=1 << 60)
    weight: float = key(
        Kind.NUMBER, "Its share of a tier that is full, relative to others.", 1.0, low=0.001, high=1000.0
    )


@dataclass(frozen=True)
class Config:
    """The whole file. `ssd` and `s3` are None when their tables are absent; `tenants` is by the tenant's name.

    `given` is what was written, as TOML read it, and `path` where: from them `settings` tells what is a default.
    """

    daemon: DaemonTable = field(default_factory=DaemonTable)
    api: ApiTable = field(default_factory=ApiTable)
    dram: DramTable = field(default_factory=DramTable)
    cuda: CudaTable = field(default_factory=CudaTable)
    ssd: SsdTable | None = None
    s3: S3Table | None = None
    codec: CodecTable = field(default_factory=CodecTable)
    planner: PlannerTable = field(default_factory=PlannerTable)
    row_path: RowPathTable = field(default_factory=RowPathTable)
    limits: LimitsTable = field(default_factory=LimitsTable)
    tenants: Mapping[str, TenantTable] = field(default_factory=dict)
    recorder: RecorderTable = field(default_factory=RecorderTable)
    given: Mapping[str, Mapping[str, object]] = field(default_factory=dict, compare=False, repr=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        dram = self.dram
        if len(self.tenants) > self.limits.tenants_max:
            raise bad_config(
                f"there are {len(self.tenants)} tables [tenants.NAME], but [limits] tenants_max = "
                f"{self.limits.tenants_max}: raise that, or give quotas to fewer"
            )
        if dram.segment_bytes % 4096 or dram.bytes % dram.segment_bytes:
            raise bad_config(
                f"[dram] bytes = {dram.bytes} in segments of segment_bytes = {dram.segment_bytes}: "
                f"make segment_bytes a multiple of 4096 and bytes a multiple of segment_bytes"
            )
        if self.api.host and not self.api.token_file and not _is_loopback(self.api.host):
            raise bad_config(
                f"[api] host = {self.api.host!r} can be reached from other machines: set token_file, or use 127.0.0.1"
            )


TENANTS = "tenants"
TABLES: dict[str, type] = {
    "daemon": DaemonTable,
    "api": ApiTable,
    "dram": DramTable,
    "cuda": CudaTable,
    "ssd": SsdTable,
    "s3": S3Table,
    "codec": CodecTable,
    "planner": PlannerTable,
    "row_path": RowPathTable,
    "limits": LimitsTable,
    "recorder": RecorderTable,
}


def parse_config(values: Mapping[str, object], path: Path | None = None) -> Config:
    """Build the configuration from parsed TOML. Raises FlexKVError(BAD_CONFIG)."""
    tables: dict[str, Any] = {}
    given: dict[str, Mapping[str, object]] = {}
    for name, table in values.items():
        if name == TENANTS and isinstance(table, Mapping):
            tables[name] = {tenant: _tenant(tenant, quota) for tenant, quota in table.items()}
            given[name] = table
            continue
        if name not in TABLES:
            raise bad_config(f"there is no table [{name}]{nearest(name, (*TABLES, TENANTS))}")
        if not isinstance(table, Mapping):
            raise bad_config(f"{name} = {table!r} stands outside any table: write it as a table [{name}] of keys")
        tables[name] = _table(TABLES[name], name, table)
        given[name] = table
    return Config(**tables, given=given, path=path)


def load_config(path: Path | None) -> Config:
    """Read the file at `path`, or take the defaults. Raises FlexKVError(BAD_CONFIG)."""
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
        return parse_config(tomllib.loads(text), path)
    except OSError as error:
        raise bad_config(f"{path} cannot be read ({error.strerror}): name a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise bad_config(f"{path} is not TOML: {error}") from error


@dataclass(frozen=True)
class KeyDescription:
    """One key for documentation; `default` is None where the key must be given."""

    table: str
    name: str
    kind: str
    default: object
    doc: str
    live: bool


def describe() -> Iterator[KeyDescription]:
    """Every key of every table, in the order of the file; of quotas, which have a table each, see `TenantTable`."""
    for table, cls in TABLES.items():
        for each, accepted in keys_of(cls):
            default = None if each.default is MISSING else each.default
            yield KeyDescription(table, each.name, accepted.kind.value, default, accepted.doc, accepted.live)


def read_token(path: str, key_name: str) -> str:
    """First line of a token file; empty when none is configured. Raises FlexKVError(BAD_CONFIG)."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_config(f"{key_name} = {path!r} cannot be read ({error}): name a readable text file") from error
    if not token:
        raise bad_config(f"{key_name} = {path!r} has an empty first line: write the token there")
    return token


def _tenant(name: str, values: object) -> TenantTable:
    if not isinstance(values, Mapping):
        raise bad_config(f"tenants.{name} = {values!r} is no quota: write a table [tenants.{name}] of keys")
    if len(name) > NAME_CHARS_MAX:
        raise bad_config(f"[tenants.{name[:16]}…]: a tenant's name has at most {NAME_CHARS_MAX} characters")
    return _table(TenantTable, f"{TENANTS}.{name}", values)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _table(cls: type[TableT], name: str, values: Mapping[str, object]) -> TableT:
    return read_table(cls, name, values)
