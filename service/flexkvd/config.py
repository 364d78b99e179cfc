"""The daemon's configuration: every key with its default, range and meaning.

Owns the tables; `toml_tables` owns how values are read, `main` where the file is. A table `[ssd]` or
`[s3]` that is absent means that tier is absent. Every limit of the daemon is a key here.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flexkv_py.core.config import SECOND_NS, PlannerConfig
from flexkv_py.core.messages import Tier
from flexkvd.toml_tables import Kind, TableT, bad_config, key, keys_of, nearest, read_table

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10
DAY_S = 86_400.0
ID_MAX = (1 << 32) - 2


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
    drain_s: float = key(Kind.NUMBER, "Time SIGTERM leaves running tickets and promised flushes.", 20.0, high=DAY_S)
    log_level: str = key(
        Kind.TEXT, "Least severe line that is logged.", "info", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True)
class ApiTable:
    """[api]: the REST admin API and /metrics."""

    socket: str = key(
        Kind.TEXT, "Unix socket of the API; empty: none. Only the daemon's user may connect.", "/run/flexkvd/admin.sock"
    )
    host: str = key(Kind.TEXT, "Address to listen on instead of the socket; other than loopback needs a token.", "")
    port: int = key(Kind.COUNT, "TCP port used with host.", 7979, high=65_535)
    token_file: str = key(Kind.TEXT, "File whose first line is the bearer token; empty: no token is asked for.", "")


@dataclass(frozen=True)
class DramTable:
    """[dram]: the arena."""

    bytes: int = key(Kind.SIZE, "Size of the arena, a multiple of segment_bytes.", 4 * GIB, low=MIB, high=8 << 40)
    segment_bytes: int = key(
        Kind.SIZE,
        "Size of one memfd segment; no chunk can be larger. A multiple of 2 MiB lets huge pages in.",
        64 * MIB,
        low=MIB,
        high=64 * GIB,
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
class SsdTable:
    """[ssd]: the disk tier."""

    directory: tuple[str, ...] = key(
        Kind.TEXTS,
        "Directory of the records, or a list of directories (one per disk) over which they are striped; "
        "one daemon at a time.",
        low=1,
        high=16,
    )
    bytes: int = key(Kind.SIZE, "Room the segment files may take, all directories together.", low=MIB, high=1 << 55)
    segment_bytes: int = key(
        Kind.SIZE,
        "Size of a segment file; 0: chosen by capacity and first record. Fixed once a directory has segments.",
        0,
        high=64 * GIB,
    )
    write_amplification_max: float = key(
        Kind.NUMBER,
        "Bytes written to the disk per byte of new records: reclaim rewrites live records within it and lets go of "
        "the rest.",
        1.5,
        low=1,
        high=10,
    )
    free_space_reserve_bytes: int = key(
        Kind.SIZE,
        "Room of each file system that stays free; 0: a fiftieth of it, at most 1 GiB.",
        0,
        high=1 << 50,
    )
    direct_io: bool = key(Kind.SWITCH, "Bypass the page cache where the file system allows.", True)
    threads: int = key(Kind.COUNT, "Threads that read and write.", 8, low=1, high=64)
    reads_in_flight_max: int = key(Kind.COUNT, "Blocks read at the same time.", 8, low=1, high=256)
    writes_in_flight_max: int = key(Kind.COUNT, "Blocks written at the same time.", 4, low=1, high=256)
    transfer_s_max: float = key(Kind.NUMBER, "A read or write that takes longer has failed.", 30.0, low=0.1, high=3600)
    io: Literal["auto", "io_uring", "threads", "aiofiles"] = key(
        Kind.TEXT,
        "Engine that moves the bytes; auto: io_uring where the kernel lets us, else threads. Status says which.",
        "auto",
        choices=("auto", "io_uring", "threads", "aiofiles"),
    )


@dataclass(frozen=True)
class S3Table:
    """[s3]: the object tier. Credentials come from the environment or the files that boto3 reads."""

    bucket: str = key(Kind.TEXT, "Bucket; it must exist.", low=1)
    prefix: str = key(Kind.TEXT, "Every object's name starts with this.", "flexkv")
    endpoint_url: str = key(Kind.TEXT, "Server, for other than AWS; empty: AWS.", "")
    region: str = key(Kind.TEXT, "Region the requests are signed for; empty: boto3's own.", "")
    addressing_style: Literal["auto", "path", "virtual"] = key(
        Kind.TEXT, "Where the bucket's name goes in a URL.", "auto", choices=("auto", "path", "virtual")
    )
    sign_payload: Literal["auto", "always", "never"] = key(
        Kind.TEXT,
        "Whether uploads are signed over their bytes too, which costs the most CPU of all; auto: only without TLS.",
        "auto",
        choices=("auto", "always", "never"),
    )
    ca_bundle: str = key(Kind.TEXT, "File of certificates to trust instead of the system's; empty: the system's.", "")
    bytes: int = key(Kind.SIZE, "Room the objects may take; 0: no limit.", 0, high=1 << 60)
    processes: int = key(Kind.COUNT, "Child processes that move the bytes.", 1, low=1, high=16)
    threads: int = key(Kind.COUNT, "Connections of each child.", 4, low=1, high=64)
    reads_in_flight_max: int = key(Kind.COUNT, "Objects read at the same time.", 16, low=1, high=1024)
    writes_in_flight_max: int = key(Kind.COUNT, "Objects written at the same time.", 8, low=1, high=1024)
    connect_timeout_s: float = key(Kind.NUMBER, "Longest wait for a connection.", 3.0, low=0.01, high=600)
    read_timeout_s: float = key(Kind.NUMBER, "Longest wait for the next bytes.", 10.0, low=0.01, high=600)
    operation_timeout_s: float = key(
        Kind.NUMBER, "Longest transfer of one object, all its retries together.", 30.0, low=0.01, high=3600
    )
    retry_count_max: int = key(Kind.COUNT, "Retries of one transfer.", 4, high=100)


@dataclass(frozen=True)
class PlannerTable:
    """[planner]: what is kept where."""

    policy: str = key(Kind.TEXT, "Order of eviction.", "lru", choices=("lru",))
    admission: str = key(
        Kind.TEXT,
        "What may go below DRAM: every block, or one seen a second time.",
        "always",
        choices=("always", "second-use"),
    )
    clean_ahead: float = key(
        Kind.NUMBER, "Share of DRAM (and of SSD, with S3 below it) kept free or already copied below.", 0.25, high=0.99
    )


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
    hold_s_max: float = key(Kind.NUMBER, "Longest a lease lives.", 600.0, low=0.001, high=DAY_S)
    deadline_s_default: float = key(Kind.NUMBER, "Deadline of a ticket that names none.", 10.0, low=0.001, high=DAY_S)
    deadline_s_max: float = key(Kind.NUMBER, "Longest deadline or wait to ask for.", 600.0, low=0.001, high=DAY_S)
    hello_s_max: float = key(Kind.NUMBER, "Time a connection has to say hello.", 5.0, low=0.01, high=3600)
    write_buffer_bytes_max: int = key(
        Kind.SIZE, "Replies kept for a client that does not read; more closes it.", 8 * MIB, low=64 * KIB, high=GIB
    )
    allocation_waiters_max: int = key(Kind.COUNT, "Blocks that wait for room in DRAM.", 65_536, low=1, high=1 << 24)
    demotions_in_flight_max: int = key(Kind.COUNT, "Blocks on their way down to one tier.", 16, low=1, high=65_536)
    promotions_in_flight_max: int = key(Kind.COUNT, "Blocks on their way up.", 64, low=1, high=65_536)
    flush_in_flight_max: int = key(Kind.COUNT, "Blocks of one flush on their way down.", 16, low=1, high=65_536)
    demotion_faults_max: int = key(
        Kind.COUNT, "A block whose demotion failed so often may leave DRAM without a copy below.", 2, low=1, high=1000
    )
    retry_after_s: float = key(Kind.NUMBER, "What a throttled save is told to wait.", 0.05, low=0.001, high=60)
    story_events_max: int = key(Kind.COUNT, "Lines kept of all blocks' stories.", 65_536, low=1, high=1 << 24)


@dataclass(frozen=True)
class Config:
    """The whole file. `ssd` and `s3` are None when their tables are absent."""

    daemon: DaemonTable = field(default_factory=DaemonTable)
    api: ApiTable = field(default_factory=ApiTable)
    dram: DramTable = field(default_factory=DramTable)
    ssd: SsdTable | None = None
    s3: S3Table | None = None
    planner: PlannerTable = field(default_factory=PlannerTable)
    limits: LimitsTable = field(default_factory=LimitsTable)

    def __post_init__(self) -> None:
        dram = self.dram
        if dram.segment_bytes % 4096 or dram.bytes % dram.segment_bytes:
            raise bad_config(
                f"[dram] bytes = {dram.bytes} in segments of segment_bytes = {dram.segment_bytes}: "
                f"make segment_bytes a multiple of 4096 and bytes a multiple of segment_bytes"
            )
        if self.api.host and not self.api.token_file and not _is_loopback(self.api.host):
            raise bad_config(
                f"[api] host = {self.api.host!r} can be reached from other machines: set token_file, or use 127.0.0.1"
            )


TABLES: dict[str, type] = {
    "daemon": DaemonTable,
    "api": ApiTable,
    "dram": DramTable,
    "ssd": SsdTable,
    "s3": S3Table,
    "planner": PlannerTable,
    "limits": LimitsTable,
}


def parse_config(values: Mapping[str, object]) -> Config:
    """Build the configuration from parsed TOML. Raises FlexKVError(BAD_CONFIG)."""
    tables: dict[str, Any] = {}
    for name, table in values.items():
        if name not in TABLES:
            raise bad_config(f"there is no table [{name}]{nearest(name, TABLES)}")
        if not isinstance(table, Mapping):
            raise bad_config(f"{name} = {table!r} stands outside any table: write it as a table [{name}] of keys")
        tables[name] = _table(TABLES[name], name, table)
    return Config(**tables)


def load_config(path: Path | None) -> Config:
    """Read the file at `path`, or take the defaults. Raises FlexKVError(BAD_CONFIG)."""
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
        return parse_config(tomllib.loads(text))
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


def describe() -> Iterator[KeyDescription]:
    """Every key of every table, in the order of the file."""
    for table, cls in TABLES.items():
        for each, accepted in keys_of(cls):
            default = None if each.default is MISSING else each.default
            yield KeyDescription(table, each.name, accepted.kind.value, default, accepted.doc)


def planner_config(config: Config) -> PlannerConfig:
    """What of it the planner is told."""
    ssd, s3, limits = config.ssd, config.s3, config.limits
    tiers = (Tier.DRAM, *([Tier.SSD] if ssd else []), *([Tier.S3] if s3 else []))
    return PlannerConfig(
        tiers=tiers,
        recovers=tiers[1:],
        segment_bytes=config.dram.segment_bytes,
        dram_segments=config.dram.bytes // config.dram.segment_bytes,
        ssd_bytes=_usable_bytes(ssd) if ssd else 0,
        s3_bytes=s3.bytes if s3 else 0,
        policy=config.planner.policy,
        admission=config.planner.admission,
        clean_ahead=config.planner.clean_ahead,
        sessions_max=limits.sessions_max,
        tickets_per_session_max=limits.tickets_per_session_max,
        leases_per_session_max=limits.leases_per_session_max,
        allocation_waiters_max=limits.allocation_waiters_max,
        demotions_in_flight_max=limits.demotions_in_flight_max,
        promotions_in_flight_max=limits.promotions_in_flight_max,
        flush_in_flight_max=limits.flush_in_flight_max,
        demotion_faults_max=limits.demotion_faults_max,
        story_events_max=limits.story_events_max,
        hold_ns_max=int(limits.hold_s_max * SECOND_NS),
        retry_after_ns=int(limits.retry_after_s * SECOND_NS),
    )


def _usable_bytes(ssd: SsdTable) -> int:
    """What of the capacity live records may take."""
    from flexkv_tiers.ssd.sizes import planned_usable_bytes  # noqa: PLC0415 - only a daemon with a disk tier needs it

    return planned_usable_bytes(ssd.bytes, len(ssd.directory), ssd.segment_bytes)


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _table(cls: type[TableT], name: str, values: Mapping[str, object]) -> TableT:
    return read_table(cls, name, values)
