"""Names of places in S3: what a server would take for another name is refused before anything is stored there."""

from __future__ import annotations

import pytest

from flexkv_py.core.messages import BlockName
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.names import (
    PACK_RECORDS_MAX,
    SHARD_MAX,
    TAIL_BYTES_MAX,
    DropMarks,
    PackName,
    marks_name,
    object_name,
)
from flexkv_tiers.s3.places import NAME_BYTES_MAX

LONGEST = NAME_BYTES_MAX - TAIL_BYTES_MAX - 1  # and the slash behind it

REFUSED = [
    ({"prefix": "a//b"}, "'//' for one '/'"),
    ({"prefix": "."}, "resolve '.'"),
    ({"prefix": "a/./b"}, "resolve '.'"),
    ({"prefix": "/a/../b/"}, "resolve '.'"),
    ({"prefix": "a\nb"}, "printable"),
    ({"prefix": "a\x00"}, "printable"),
    ({"prefix": "p" * (LONGEST + 3)}, "3 bytes longer than S3's 1024"),
    ({"prefix": "ö" * (LONGEST // 2 + 1)}, "bytes longer"),
    ({"bucket": ""}, "name the bucket"),
    ({"bucket": "No Such/x"}, "no bucket can be called"),
    ({"bucket": "a..b"}, "no bucket can be called"),
    ({"region": "no region!"}, "no region is called"),
    ({"region": "-x"}, "no region is called"),
    ({"endpoint_url": "127.0.0.1:9000"}, "no URL of a server"),
    ({"endpoint_url": "ftp://host"}, "no URL of a server"),
    ({"endpoint_url": "http://bad host"}, "no URL of a server"),
    ({"endpoint_url": "http://no_host"}, "no URL of a server"),
    ({"endpoint_url": "http://host:99999"}, "no URL of a server"),
    ({"endpoint_url": "http://host:80/some/path"}, "a path in it s3.prefix"),
    ({"endpoint_url": "http://host?x=1"}, "more than a server's"),
    ({"endpoint_url": "http://user:word@host"}, "credentials are where boto3"),
]

TAKEN = [
    {"prefix": ""},
    {"prefix": "/köln/x y/"},
    {"prefix": "a+b%20&c=d/..."},
    {"prefix": "p" * LONGEST},
    {"bucket": "Old_Name.of-us"},
    {"bucket": "arn:aws:s3:eu-west-1:123456789012:accesspoint/blocks"},
    {"region": "us-gov-west-1"},
    {"endpoint_url": "https://[::1]:8333/"},
    {"endpoint_url": "http://s3.internal"},
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[str(change)[:40] for change, _ in REFUSED])
def test_what_names_no_place_is_refused_with_cause_and_cure(change: dict[str, str], words: str) -> None:
    """A name that servers rewrite, or none can have, is `bad_config` with the key and a sentence."""
    with pytest.raises(FlexKVError) as caught:
        S3Config(**{"bucket": "b"} | change)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert f"s3.{next(iter(change))} " in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize("change", TAKEN, ids=[str(change)[:40] for change in TAKEN])
def test_unusual_names_that_servers_keep_are_taken(change: dict[str, str]) -> None:
    """Spaces, other alphabets, escapes, old bucket names, access points: all of them are somebody's."""
    S3Config(**{"bucket": "b"} | change)


def test_no_name_of_ours_is_longer_than_allowed_for() -> None:
    """The longest names that there can be, under the longest prefix, are exactly as long as S3 takes."""
    prefix = "p" * LONGEST
    pack = PackName(b"n" * 32, SHARD_MAX, (1 << 48) - 1, (1 << 64) - 1, PACK_RECORDS_MAX)
    names = [
        marks_name(prefix, DropMarks(pack, (1 << PACK_RECORDS_MAX) - 1)),
        object_name(prefix, BlockName(b"n" * 32, SHARD_MAX, b"k" * 16, b"p" * 16)),
    ]
    assert max(map(len, names)) == NAME_BYTES_MAX
