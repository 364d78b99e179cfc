"""Child processes that map the arena and move bytes there, so that the daemon's loop never does.

`worker` is the daemon's side, `child` the other process's, `framing` what both say on their socket.
"""

from flexkv_tiers.byteworkers.worker import ByteWorker

__all__ = ["ByteWorker"]
