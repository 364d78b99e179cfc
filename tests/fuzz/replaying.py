"""A replay that goes on until it is told to stop: `python -m tests.fuzz.replaying SOCKET`, ended by closing its input.

The traffic is that of `flexkv replay`: conversations that grow, every byte that comes back compared. That the daemon
drains for a while is no failure; anything else that is refused is. Prints what it saw as JSON at the end.
"""

import json
import random
import select
import sys
import time

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.pattern import Pattern
from flexkvd.cli.traffic import ReplayClient, Target

BLOCK_BYTES = 64 * 1024
TOKENS_PER_BLOCK = 64
CONVERSATIONS = 24
TURN_BLOCKS_MAX = 12
PAUSE_S = 0.02


def main(socket: str) -> None:
    """Serve turns of conversations until stdin is closed."""
    target = Target(socket, BLOCK_BYTES, TOKENS_PER_BLOCK)
    chance, drained = random.Random(5), 0
    conversations: list[list[int]] = [[number << 32] for number in range(CONVERSATIONS)]
    with ReplayClient(target, target.geometry(), Pattern(BLOCK_BYTES)) as client:
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            ids = chance.choice(conversations)
            if len(ids) > 4 * TURN_BLOCKS_MAX:
                del ids[1:]
            ids += [ids[-1] + step for step in range(1, chance.randint(2, TURN_BLOCKS_MAX))]
            try:
                client.serve(ids)
            except FlexKVError as error:
                if error.code is not ErrorCode.DRAINING:
                    raise
                drained += 1
                time.sleep(PAUSE_S)
    ledger = client.ledger
    seen = {"requests": ledger.requests, "matched": ledger.matched, "wrong": ledger.wrong, "drained": drained}
    print(json.dumps(seen | {"hits": ledger.hits.total()}))  # noqa: T201 - it is what was asked for


if __name__ == "__main__":
    main(sys.argv[1])
