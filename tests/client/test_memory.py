"""Memory a worker makes and describes for the daemon."""

import fcntl
import os

import pytest

from flexkv_py.client import PagedLayout, create_memory
from flexkv_py.errors import FlexKVError
from flexkv_py.geometry import Geometry, Plane

GEOMETRY = Geometry(planes=(Plane("kv", (0, 1, 2), 576), Plane("index", (0, 2), 132, tokens_per_row=4)))


def test_made_memory_cannot_shrink():
    """The memfd has its length and the seal that the daemon asks for, and is closed on exec."""
    descriptor = create_memory(10_000)
    try:
        assert os.fstat(descriptor).st_size == 10_000
        assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        assert not os.get_inheritable(descriptor)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 1)
    finally:
        os.close(descriptor)


def test_a_layout_gives_every_layer_its_own_place():
    """Layers of all planes follow each other on 4 KiB without overlap, and the length covers them."""
    layout = PagedLayout(GEOMETRY, page_count=10, page_tokens=16)
    assert [(place.plane, place.layer) for place in layout.layers] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    assert [place.page_bytes for place in layout.layers] == [16 * 576] * 3 + [4 * 132] * 2
    end = 0
    for place in layout.layers:
        assert place.offset % 4096 == 0
        assert place.offset >= end
        end = place.offset + 10 * place.page_stride
    assert end <= layout.bytes < end + 4096


@pytest.mark.parametrize(
    ("page_count", "page_tokens", "why"), [(0, 16, "at least 1"), (4, 48, "divisor"), (4, 2, "multiple")]
)
def test_pages_that_do_not_fit_the_geometry_are_refused(page_count, page_tokens, why):
    """A page must divide the block and hold whole rows; there must be one at all."""
    with pytest.raises(FlexKVError, match=why):
        PagedLayout(GEOMETRY, page_count, page_tokens)


def test_empty_memory_is_refused():
    """A memory has at least one byte."""
    with pytest.raises(FlexKVError, match="at least 1"):
        create_memory(0)
