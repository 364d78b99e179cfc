"""Gates as the lanes have them: which copies each still waits for. What its word means is `flexkv_py.wire.gates`'s."""

from __future__ import annotations

from dataclasses import dataclass

from flexkv_py.wire.gates import gate_value


@dataclass(slots=True)
class Gate:
    """A gate that is to be opened once: `offset` in the registered memory, in bytes, of its little-endian u32.

    `blocks_left` are those whose copies it still waits for. All tasks that copy them share it, in whatever order
    they run: one that fails spoils it for the last, which opens it. Counted by one thread of the lanes; whoever
    gives it up sets `failed` and starts a task without blocks, which opens it before the others have run.
    """

    offset: int
    generation: int
    blocks_left: int
    failed: bool = False
    opened: bool = False

    @property
    def value(self) -> int:
        """What opens it."""
        return gate_value(self.generation, failed=self.failed)

    def ran(self, blocks: int, *, failed: bool) -> bool:
        """The copies of so many blocks were run (0: it is given up); True: write `value` now, and only now."""
        assert 0 <= blocks <= self.blocks_left
        self.blocks_left -= blocks
        self.failed |= failed
        if self.opened or (blocks and self.blocks_left):
            return False
        self.failed |= self.blocks_left > 0
        self.opened = True
        return True
