"""A worker process of the row path that tests can kill: `python row_worker.py SOCKET GEOMETRY FIRST_TOKEN BLOCKS`.

It attaches request 7 to the blocks of that chain (GEOMETRY is msgpack in hexadecimal), takes its page changes and
never acknowledges any. It says `attached` when it has been granted something, and closes its socket, without
detaching and without ending, when it is told anything on standard input.
"""

import sys

import msgspec

from flexkv_py.client import Client
from flexkv_py.geometry import Geometry


def main(path: str, geometry: Geometry, first_token: int, block_count: int) -> None:
    client = Client(path, geometry, timeout_s=10.0)
    client.connect()
    last_token = first_token + block_count * geometry.tokens_per_block
    request = client.attach(7, client.keys(range(first_token, last_token)))
    while not any(pages.granted for pages in request.pages()):
        client.wait_for_pages(1.0)
    print("attached", flush=True)  # noqa: T201
    sys.stdin.readline()
    client.close()
    print("closed", flush=True)  # noqa: T201
    sys.stdin.readline()


if __name__ == "__main__":
    main(
        sys.argv[1],
        msgspec.msgpack.decode(bytes.fromhex(sys.argv[2]), type=Geometry),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
