"""Every message on the worker socket, as a type.

A frame is `u32 length ‖ body`; the body is one msgpack array `[tag, id, …]`. `id` is chosen by the
client and copied into the one reply. Messages the daemon sends of itself have `id` 0 and tags of
128 and above; a client queues them for `poll()`, and page changes for whoever attached the request.
Many keys travel as one bytes field (16 bytes each), many pages as u32 little endian. Fields may be
appended with defaults; nothing is ever reordered. Times are durations in milliseconds: no clock is shared.

Tags 40–59 (client) and 140–159 (daemon) are the row path's. Its many small numbers travel as u32 little
endian too, so many in a row; a frame's number times `frame_step_bytes` of `Segments` is its place in the arena.
"""

from __future__ import annotations

import msgspec

from flexkv_py.geometry import Geometry

PROTOCOL_VERSION = 1
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
DEVICE_DESCRIPTORS_MAX = 4
"""Beside one registration: of physical memory on a device."""
SEGMENTS_PER_REPLY_MAX = 32
"""Descriptors beside one `Segments`: the kernel takes 253, and counts those nobody has received yet."""
ATTACH_KEYS_MAX = 256
"""Keys in one `Attach`: each block is granted chunk by chunk, and others wait meanwhile."""
REPORT_PAGES_MAX = 4096
"""Entries of each kind in one `Report`."""
HEAT_ENTRY_BYTES, ABSENT_ENTRY_BYTES, REPLAYED_ENTRY_BYTES, MISS_ENTRY_BYTES = 16, 12, 4, 16
GRANTED_ENTRY_BYTES, REVOKED_ENTRY_BYTES = 12, 8
"""Lengths of one entry of `Report` and of `Pages`: four, three, two or one u32."""
ROOT_PARENT = b""
"""An empty parent field stands for the zero key."""


class Message(msgspec.Struct, array_like=True, tag_field="tag", forbid_unknown_fields=False):
    """Base: every message carries the request's id."""

    id: int


# ------------------------------------------------------- client to daemon


class Hello(Message, tag=1):
    """First message. `role` is `worker` or `scheduler` (no memory); `instance` ties ranks together."""

    version: int
    geometry: Geometry
    role: str = "worker"
    instance: str = ""
    shard: int = 0
    tenant: str = "default"
    epoch: int = 0
    token: str = ""
    client: str = ""


class LayerLayout(msgspec.Struct, array_like=True):
    """Where one layer of one plane lies in registered memory.

    Page p of it starts at `offset + p * page_stride` and holds `page_bytes` bytes of rows.
    """

    plane: int
    layer: int
    offset: int
    page_stride: int
    page_bytes: int


class DeviceAllocation(msgspec.Struct, array_like=True):
    """`length` bytes from `offset` of one allocation of device memory.

    `handle` is its CUDA IPC handle (64 bytes); empty: its physical memory travels beside as a descriptor.
    """

    offset: int
    length: int
    handle: bytes = b""


class RegisterMemory(Message, tag=2):
    """Register paged KV; one memfd with F_SEAL_SHRINK travels beside it by SCM_RIGHTS.

    `layout` lists every layer of every plane (kind `paged`), or is empty for a `window`: then page p
    is a whole block as stored, at `p * block_bytes`. With `device` (a UUID) the memory is that device's, and its
    bytes are those of `allocations`, one after the other.
    """

    bytes: int
    page_count: int
    page_tokens: int
    layout: list[LayerLayout] = []
    kind: str = "paged"
    device: str = ""
    allocations: list[DeviceAllocation] = []


class UnregisterMemory(Message, tag=3):
    """Ends when no running copy touches the memory any more."""

    memory: int


class Match(Message, tag=4):
    """Longest usable prefix of `keys` in every one of `shards` (empty: the session's own)."""

    keys: bytes
    shards: list[int] = []
    hold_ms: int = 0


class GateArray(msgspec.Struct, array_like=True):
    """Where in registered memory a load's gates lie, one u32 per chunk, and which generation of their use this is.

    Generation g waits for the value 2g, compared with wrap-around: written once the chunk is there for every key,
    or 2g + 1 as soon as it is known that it will not be.
    """

    offset: int
    generation: int


class Load(Message, tag=5):
    """Promote and copy into the worker. `pages` has `tokens_per_block / page_tokens` u32 per key.

    With `gates` each chunk's is opened, whatever comes of the load, unless the answer is `Failed`.
    """

    keys: bytes
    pages: bytes
    memory: int
    deadline_ms: int = 0
    gates: GateArray | None = None


class Save(Message, tag=6):
    """Copy out of the worker. `ack` (`dram`, `ssd`, `s3`) says how deep before a key is `stored`.

    After `retention_ms` (0: never) the blocks are dropped from every tier. With `after`, the handle of an event of
    the memory's device, nothing is read before that event is reached.
    """

    keys: bytes
    pages: bytes
    memory: int
    parent: bytes = ROOT_PARENT
    deadline_ms: int = 0
    ack: str = "dram"
    skip_below: bool = False
    high_priority: bool = False
    low_priority: bool = False
    retention_ms: int = 0
    after: bytes = b""


class Prefetch(Message, tag=7):
    """Promote only; nothing is copied into the worker."""

    keys: bytes
    deadline_ms: int = 0
    to_tier: str = "dram"


class Wait(Message, tag=8):
    """Reply when the ticket is over, or chunks 0..`chunk` of every key are in the worker.

    `chunk` < 0 waits for the end. After `timeout_ms` the reply says how far it is.
    """

    ticket: int
    chunk: int = -1
    timeout_ms: int = 0


class Cancel(Message, tag=9):
    """Answered at once in any state; copies in flight run to their end (see `Fence`)."""

    ticket: int


class Release(Message, tag=10):
    """Give a lease back."""

    lease: int


class Fence(Message, tag=11):
    """Reply once no running copy touches these pages (none given: any page of the memory)."""

    memory: int
    pages: bytes = b""


class Flush(Message, tag=12):
    """Copy everything READY of the session's namespace down to that tier, admission aside."""

    to_tier: str = "ssd"
    deadline_ms: int = 0


class Reset(Message, tag=13):
    """Forget the namespace of this session's geometry and tenant at `epoch`."""

    epoch: int


class Ping(Message, tag=14):
    """Answered by `Done`."""


class MapArena(Message, tag=40):
    """Descriptors of the arena's segments from `first` on, as many as go into one reply.

    Asked for in order until all are there, once in a session. `writable` asks for descriptors that can be
    mapped writable, which only a trust group configured `shared` is given.
    """

    first: int = 0
    writable: bool = False


class Attach(Message, tag=41):
    """Let `request` (a u32 of the client's choice) read its blocks `first`… where they lie in DRAM.

    `keys` are those blocks'; the same request again goes on where the last one ended.
    """

    request: int
    keys: bytes
    first: int = 0


class Detach(Message, tag=42):
    """No step reads rows of this request any more: an acknowledgement of everything, and its end."""

    request: int


class Ack(Message, tag=43):
    """No step that could see the table before `version` is in flight any more."""

    request: int
    version: int


class Report(Message, tag=44):
    """What the indexers selected since the last report, largest change first.

    `entries` are (request, group, block, count), `misses` (request, group, hits, misses) of the hot buffer,
    `absents` (request, block, chunk) that a step needed and did not find: they are to come, and stay until the
    step has succeeded in its replay, which `replayed` (request) says.
    """

    entries: bytes = b""
    absents: bytes = b""
    replayed: bytes = b""
    misses: bytes = b""


class LetGo(Message, tag=45):
    """No step reads rows that an earlier `session` of this same process was granted."""

    session: int


ClientMessage = (
    Hello
    | RegisterMemory
    | UnregisterMemory
    | Match
    | Load
    | Save
    | Prefetch
    | Wait
    | Cancel
    | Release
    | Fence
    | Flush
    | Reset
    | Ping
    | MapArena
    | Attach
    | Detach
    | Ack
    | Report
    | LetGo
)


# ------------------------------------------------------- daemon to client


class Welcome(Message, tag=65):
    """`boot` names this life of the daemon: tickets, leases and memories of another are void.

    With `ordered_copies` it knows the gates of loads and the events of saves; a daemon that does not ignores them.
    """

    version: int
    session: int
    boot: bytes
    namespace: bytes
    chunk_count: int
    keys_per_message_max: int
    tickets_max: int
    leases_max: int
    ordered_copies: bool = False


class Registered(Message, tag=66):
    """The memory is mapped; `memory` names it in later messages."""

    memory: int


class Run(msgspec.Struct, array_like=True):
    """`count` consecutive blocks, the slowest tier they need."""

    tier: str
    count: int


class Matched(Message, tag=67):
    """The usable prefix: its length in blocks, its tiers in order, the lease when one was asked for."""

    length: int
    runs: list[Run]
    lease: int = 0


class Opened(Message, tag=68):
    """A ticket was opened (load, save, prefetch, flush)."""

    ticket: int


class Progress(Message, tag=69):
    """State of a ticket. `outcomes` has one word per key once `done`; the first `chunks` chunks are copied.

    `length` is the leading run of keys that are usable now (loaded, stored or present). `tiers` has
    one byte per key: the tier a loaded block was taken from (1 dram, 2 ssd, 3 s3, 0 none).
    """

    ticket: int
    done: bool
    chunks: int
    length: int = 0
    outcomes: list[str] = []
    detail: str = ""
    retry_after_ms: int = 0
    stored: int = 0
    tiers: bytes = b""


class Done(Message, tag=70):
    """The request is done and has nothing to tell."""


class Failed(Message, tag=71):
    """The coded error that answers a request."""

    code: str
    message: str
    retry_after_ms: int = 0


class GoingAway(Message, tag=128):
    """The daemon drains: finish what runs, then expect the socket to close. `id` is 0."""

    reason: str
    grace_ms: int


class Segments(Message, tag=140):
    """Descriptors of segments `first` to `first + count - 1` of `total` travel beside this by SCM_RIGHTS.

    Frames lie in the first `segment_bytes` of each. Frame n starts `n * frame_step_bytes` into the arena, and lies
    within one segment.
    """

    first: int
    count: int
    total: int
    segment_bytes: int
    frame_step_bytes: int
    writable: bool


class Attached(Message, tag=141):
    """The request has `block_count` blocks now. Its table is as of `version`; what is granted comes as `Pages`."""

    request: int
    version: int
    block_count: int


class Pages(Message, tag=142):
    """A new `version` of a request's table, told without being asked (`id` is 0).

    `granted` are (block, chunk, frame): the chunk's rows are in that frame. `revoked` are (block, chunk): the
    rows are absent from this version on, and their frame is held until every rank has acknowledged it.
    """

    request: int
    version: int
    granted: bytes = b""
    revoked: bytes = b""


class ReplayRefused(Message, tag=143):
    """What a request's failed step needs will not come (`id` is 0). `outcome` is a word, `message` says what to do."""

    request: int
    outcome: str
    message: str


DaemonMessage = (
    Welcome
    | Registered
    | Matched
    | Opened
    | Progress
    | Done
    | Failed
    | GoingAway
    | Segments
    | Attached
    | Pages
    | ReplayRefused
)
