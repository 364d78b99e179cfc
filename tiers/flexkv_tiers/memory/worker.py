"""A worker's registered KV memory, mapped into the daemon.

Owns what was precomputed for copying and, for memory of the host, the mapping (`memory.cuda` has that of a
device); knows nothing of sessions or tickets, copies nothing itself. The server makes one per RegisterMemory.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.wire.gates import GATE_BYTES, GENERATIONS
from flexkv_py.wire.messages import GateArray, RegisterMemory
from flexkv_tiers.base import TierFault
from flexkv_tiers.memory.gates import Gate
from flexkv_tiers.memory.layout import PageRun, PageSpans, Strand, check_layout, chunk_strands
from flexkv_tiers.memory.memfd import check_sealed, map_shared

PageTable = npt.NDArray[np.uint32]
"""Pages of blocks, shape [blocks, pages_per_block]."""


class WorkerMemory(ABC):
    """One registered memory: checked, planned, and mapped by a subclass.

    `device` is the UUID of the device it lies on, empty for the host. `strands[c]` says how chunk c of a block is
    copied; `chunk_bytes` and `chunk_payload_bytes` are the geometry's. `file` is the same for all mappings of one
    memory.
    """

    device = ""

    def __init__(self, message: RegisterMemory, geometry: Geometry, file: Hashable) -> None:
        self.file = file
        self.size_bytes = message.bytes
        self.page_count = message.page_count
        self.pages_per_block = geometry.tokens_per_block // message.page_tokens
        self.spans = PageSpans.of(geometry, message)
        self.strands: tuple[tuple[Strand, ...], ...] = chunk_strands(geometry, message)
        self.chunk_bytes = geometry.chunk_bytes
        self.chunk_payload_bytes = geometry.chunk_payload_bytes

    def page_table(self, raw: bytes, block_count: int) -> PageTable:
        """The pages of `block_count` blocks as they came in a message (u32 LE), checked.

        Raises FlexKVError: BAD_ARGUMENT for their number, PAGE_OUT_OF_RANGE for a page not in here.
        """
        expected = 4 * block_count * self.pages_per_block
        if len(raw) != expected:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"the pages field has {len(raw)} bytes: {block_count} blocks of {self.pages_per_block} pages each "
                f"need {expected}, 4 for every page",
            )
        table = np.frombuffer(raw, dtype="<u4").reshape(block_count, self.pages_per_block)
        if table.size and int(table.max()) >= self.page_count:
            raise FlexKVError(
                ErrorCode.PAGE_OUT_OF_RANGE,
                f"page {int(table.max())} is not in this memory: it was registered with {self.page_count} pages, "
                "numbered from 0",
            )
        return table

    def gates(self, array: GateArray, block_count: int) -> tuple[Gate, ...]:
        """A gate per chunk for a load of `block_count` blocks, as it came in a message, checked.

        Raises FlexKVError(BAD_ARGUMENT) for one that is not within this memory, or lies where rows do.
        """
        count = len(self.chunk_bytes)
        length = GATE_BYTES * count
        where = f"gates for {count} chunks from offset {array.offset}"
        if array.offset % GATE_BYTES or not 0 <= array.offset <= self.size_bytes - length:
            raise _refuse(
                f"{where} are not in this memory of {self.size_bytes} bytes, or not aligned: register memory with "
                f"{length} bytes more than the pages need, and give an offset that {GATE_BYTES} divides"
            )
        if self.spans.touches(array.offset, length):
            raise _refuse(f"{where} lie where pages do: put them behind the pages, into bytes no layer uses")
        if not 0 <= array.generation < GENERATIONS:
            raise _refuse(
                f"{where} have generation {array.generation}: count from 1, and after {GENERATIONS - 1} from 0"
            )
        return tuple(Gate(array.offset + GATE_BYTES * at, array.generation, block_count) for at in range(count))

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @abstractmethod
    def close(self) -> None:
        """Unmap. Idempotent. No copy may be running: fence the lanes first."""


class HostMemory(WorkerMemory):
    """A memfd, which the lanes read and write through `view`."""

    def __init__(self, descriptor: int, message: RegisterMemory, geometry: Geometry) -> None:
        """Check and map.

        Raises FlexKVError: BAD_ARGUMENT or GEOMETRY_MISMATCH for the numbers, BAD_MEMORY for the memory,
        OUT_OF_FILES when the daemon has no open file left for the mapping.
        The descriptor stays the caller's and may be closed as soon as this returns or raises.
        """
        check_layout(geometry, message)
        check_sealed(descriptor, message.bytes)
        status = os.fstat(descriptor)
        super().__init__(message, geometry, (status.st_dev, status.st_ino))
        self._map = map_shared(descriptor, message.bytes)
        # Views hang on this array, which holds the mapping's buffer. An array made over the mmap object
        # itself would hold nothing, and closing would unmap the memory under a running copy.
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)

    def view(self, strand: Strand, run: PageRun) -> npt.NDArray[np.uint8]:
        """Writable bytes of these pages of a strand, shape [layers, pages, page_bytes], no copy.

        Raises TierFault(MEMORY) when they do not lie within the memory or it is closed.
        """
        if self._bytes is None:
            raise TierFault(Fault.MEMORY, "the worker's memory was unregistered")
        try:
            return np.ndarray(
                (strand.layer_count, run.count, strand.page_bytes),
                np.uint8,
                self._bytes,
                strand.offset + run.first * strand.page_stride,
                (strand.layer_stride, run.step * strand.page_stride, 1),
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise TierFault(Fault.MEMORY, f"the worker's memory cannot be reached: {error}") from error

    def write_gate(self, gate: Gate) -> None:
        """Open a gate: one aligned store, after all that this thread or one it waited for has copied."""
        if self._bytes is not None:
            self._bytes[gate.offset : gate.offset + GATE_BYTES].view("<u4")[0] = gate.value

    @property
    def closed(self) -> bool:
        return self._map.closed

    def close(self) -> None:
        """Unmap. Idempotent. Raises BufferError while a view is alive: fence the lanes, then close again."""
        self._bytes = None
        self._map.close()


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
