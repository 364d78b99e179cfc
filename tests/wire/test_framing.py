"""Framing: the same bodies, however the bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.framing import PREFIX_BYTES, FrameDecoder, put_prefix
from flexkv_py.wire.messages import MESSAGE_BYTES_MAX

bodies = st.lists(st.binary(max_size=300), max_size=20)


def frames(bodies: list[bytes]) -> bytes:
    return b"".join(bytes(put_prefix(bytearray(PREFIX_BYTES) + body)) for body in bodies)


def decoded(decoder: FrameDecoder, piece: bytes) -> list[bytes]:
    return [bytes(body) for body in decoder.feed(piece)]


@given(bodies)
def test_a_byte_at_a_time_gives_the_same_bodies(bodies):
    """Bodies come out whole and in order when every byte arrives alone."""
    decoder, out = FrameDecoder(), []
    for byte in frames(bodies):
        out += decoded(decoder, bytes([byte]))
    assert out == bodies
    assert decoder.pending_bytes == 0


@given(bodies, st.lists(st.integers(0, 6000), max_size=30))
def test_any_cut_gives_the_same_bodies(bodies, cuts):
    """Where the stream is cut makes no difference, and nothing is kept of finished frames."""
    stream, decoder, out = frames(bodies), FrameDecoder(), []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in itertools.pairwise(edges):
        out += decoded(decoder, stream[start:end])
        assert decoder.pending_bytes < PREFIX_BYTES + 300
    assert out == bodies


def test_a_whole_frame_is_not_copied():
    """A body that lies whole in what was received is a view of it."""
    received = bytearray(frames([b"body"]))
    [body] = FrameDecoder().feed(received)
    received[PREFIX_BYTES] = ord("B")
    assert body == b"Body"


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_length_over_the_limit_is_refused_before_anything_is_kept(cut):
    """A lying prefix is refused with its last byte, and the decoder has kept less than a prefix."""
    lie = (MESSAGE_BYTES_MAX + 1).to_bytes(PREFIX_BYTES, "little") + b"x"
    decoder = FrameDecoder()
    pieces = [lie[start : start + cut] for start in range(0, len(lie), cut)]
    with pytest.raises(FlexKVError, match=r"\[message_too_large\]"):
        list(itertools.chain.from_iterable(decoder.feed(piece) for piece in pieces))
    assert decoder.pending_bytes < PREFIX_BYTES


def test_bodies_before_a_lying_length_still_come_out():
    """What was whole before the lie is delivered first, in one piece as byte by byte."""
    fed = FrameDecoder(8).feed(frames([b"one", b"two"]) + b"\x09\0\0\0")
    assert [next(fed), next(fed)] == [b"one", b"two"]
    with pytest.raises(FlexKVError, match="over the limit of 8"):
        next(fed)


def test_the_longest_message_passes_and_one_byte_more_does_not():
    """The limit is the same for who sends and who receives."""
    longest = put_prefix(bytearray(PREFIX_BYTES + MESSAGE_BYTES_MAX))
    [body] = FrameDecoder().feed(longest)
    assert len(body) == MESSAGE_BYTES_MAX
    with pytest.raises(FlexKVError) as refusal:
        put_prefix(bytearray(PREFIX_BYTES + MESSAGE_BYTES_MAX + 1))
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
