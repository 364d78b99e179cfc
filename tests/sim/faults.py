"""What goes wrong in one world, and how long things take: drawn from the seed, until it is to stop."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from flexkv_py.core.messages import Fault
from flexkv_tiers.fake import FaultPlan, Operation, Verdict

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

READ_FAULTS = (Fault.CORRUPT, Fault.MISSING, Fault.IO, Fault.LATE, Fault.DOWN)
WRITE_FAULTS = (Fault.IO, Fault.FULL, Fault.LATE, Fault.DOWN)
DROP_FAULTS = (Fault.IO, Fault.LATE, Fault.DOWN)
TIERS = ("ssd", "s3", "worker")


@dataclass
class Faults:
    """The plan of one world. `stop` ends all faults for good; latencies stay."""

    chance: random.Random
    plans: dict[str, FaultPlan] = field(default_factory=dict)
    memory_rate: float = 0.0
    damage_rate: float = 0.0
    down_rate: float = 0.0
    crash_rate: float = 0.0
    reclaim_rate: float = 0.0
    """Records a store lets go of by itself, per operation of the workload."""
    others_rate: float = 0.0
    """Blocks another daemon writes into the bucket, per operation of the workload."""
    in_doubt_rate: float = 0.5
    """Failed S3 writes of which the object is there all the same."""
    stopped: bool = False

    def __post_init__(self) -> None:
        chance = self.chance
        calm = chance.random() < 0.25  # some worlds only have latency, so that orders are all there is to get wrong
        scale = 0.0 if calm else chance.choice((0.005, 0.02, 0.06))
        for tier in TIERS:
            slow = chance.choice((50, 400, 3000)) * MICROSECOND
            rates = {
                Operation.READ: {fault: scale * chance.random() for fault in READ_FAULTS},
                Operation.WRITE: {fault: scale * chance.random() for fault in WRITE_FAULTS},
                Operation.DROP: {fault: scale * chance.random() for fault in DROP_FAULTS},
            }
            self.plans[tier] = FaultPlan(
                chance.getrandbits(32), latency_ns=(10 * MICROSECOND, slow), rates=rates, chunk_count_max=4
            )
        if not calm:
            self.memory_rate = scale
            self.damage_rate = chance.choice((0.0, 0.01, 0.06))
            self.down_rate = chance.choice((0.0, 0.003, 0.01))
            self.reclaim_rate = chance.choice((0.0, 0.01, 0.15))
        self.others_rate = chance.choice((0.0, 0.0, 0.03))
        self.crash_rate = chance.choice((0.0, 0.001, 0.004))

    def verdict(self, tier: str, operation: Operation) -> Verdict:
        """Latency and fault of one operation that begins now."""
        return self.plans[tier].verdict(operation)

    def stop(self) -> None:
        """From here on everything works."""
        self.stopped = True
        self.memory_rate = self.damage_rate = self.down_rate = self.crash_rate = 0.0
        self.reclaim_rate = self.others_rate = 0.0
        for plan in self.plans.values():
            plan.rates = {operation: {} for operation in Operation}
