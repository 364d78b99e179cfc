"""Memory a worker shares with the daemon: making it, and saying where the rows lie in it.

Descriptors and arithmetic only, so that a worker needs neither torch nor numpy to register its KV.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from functools import cached_property

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, align_up
from flexkv_py.wire.messages import LayerLayout


def create_memory(length: int, name: str = "flexkv-worker") -> int:
    """A memfd of `length` bytes, all zero, that nobody can shrink; the caller closes the descriptor.

    Without F_SEAL_SHRINK the daemon refuses it: truncating mapped memory would kill the daemon.
    """
    if length < 1:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"memory of {length} bytes: ask for at least 1")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class PagedLayout:
    """Layer-first paged KV in one memory: `[plane][layer][page][row]`.

    Each layer of each plane is one tensor of `page_count` pages, back to back, that starts on 4 KiB.
    Page p of it holds `page_tokens` tokens. Raises BAD_ARGUMENT where pages do not divide a block.
    """

    geometry: Geometry
    page_count: int
    page_tokens: int

    def __post_init__(self) -> None:
        tokens = self.geometry.tokens_per_block
        if self.page_count < 1:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"{self.page_count} pages: a paged KV has at least 1")
        if self.page_tokens < 1 or tokens % self.page_tokens:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"pages of {self.page_tokens} tokens do not divide a block of {tokens} tokens: choose a divisor",
            )
        for plane in self.geometry.planes:
            if self.page_tokens % plane.tokens_per_row:
                raise FlexKVError(
                    ErrorCode.BAD_ARGUMENT,
                    f"a page of {self.page_tokens} tokens cuts a row of {plane.tokens_per_row} tokens of plane "
                    f"{plane.name!r}: make page_tokens a multiple of it",
                )

    @cached_property
    def layers(self) -> list[LayerLayout]:
        """Where every layer of every plane lies, as `register_memory` wants it."""
        layouts, offset = [], 0
        for index, plane in enumerate(self.geometry.planes):
            page_bytes = self.page_bytes(index)
            for layer in plane.layers:
                layouts.append(LayerLayout(index, layer, offset, page_bytes, page_bytes))
                offset += align_up(page_bytes * self.page_count)
        return layouts

    @cached_property
    def bytes(self) -> int:
        """Length of the whole memory."""
        return sum(align_up(layout.page_bytes * self.page_count) for layout in self.layers)

    def page_bytes(self, plane: int) -> int:
        """Bytes of one page of one layer of `plane`."""
        return self.page_tokens // self.geometry.planes[plane].tokens_per_row * self.geometry.planes[plane].row_bytes
