"""The automatic choice of a codec for one plane of one namespace, from what codecs did to its live blocks.

Pure: told what was measured, it says what to do next. The first chunks are trials, on which every
candidate is measured, then one in many. Between trials the codec that was chosen is used alone, and
watched all the same. `choice` keeps one of these for each plane.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexkv_tiers.codec.plan import CodecNumber, Measure

PAYS_MIN = 0.03
"""Share of the raw bytes that a codec must save over any that costs less CPU, or over none."""

TRIALS_FIRST = 8
"""Chunks on which a new plane is measured before one codec is settled on."""

TRIAL_EVERY = 256
"""Chunks from one trial to the next while something pays; while nothing does, `TRIAL_EVERY_IDLE`."""

TRIAL_EVERY_IDLE = 2048

MEMORY_BYTES = 64 << 20
"""A codec's figures are halved whenever they cover more than this: what blocks are like now is what counts."""


@dataclass(slots=True)
class Figures:
    """What one codec did to one plane lately: sums of bytes, and of CPU time in nanoseconds."""

    raw_bytes: float = 0
    stored_bytes: float = 0
    encode_ns: float = 0
    decoded_bytes: float = 0
    decode_ns: float = 0

    def add(self, measure: Measure) -> None:
        self.raw_bytes += measure.raw_bytes
        self.stored_bytes += measure.stored_bytes
        self.encode_ns += measure.encode_ns
        if measure.decode_ns:
            self.decoded_bytes += measure.raw_bytes
            self.decode_ns += measure.decode_ns
        if self.raw_bytes > MEMORY_BYTES:
            for name in self.__slots__:
                setattr(self, name, getattr(self, name) / 2)

    @property
    def saved(self) -> float:
        """Share of the raw bytes that need not be stored."""
        return 1 - self.stored_bytes / self.raw_bytes if self.raw_bytes else 0.0

    @property
    def cpu_ns_per_byte(self) -> float:
        """In and out again."""
        there = self.encode_ns / self.raw_bytes if self.raw_bytes else 0.0
        return there + (self.decode_ns / self.decoded_bytes if self.decoded_bytes else 0.0)

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {
            "saved_percent": round(100 * self.saved, 1),
            "encode_gb_per_s": round(self.raw_bytes / self.encode_ns, 2) if self.encode_ns else None,
            "decode_gb_per_s": round(self.decoded_bytes / self.decode_ns, 2) if self.decode_ns else None,
        }


class AutoChoice:
    """Chooses between these candidates and none for one plane."""

    def __init__(self, candidates: tuple[CodecNumber, ...]) -> None:
        self.decision = CodecNumber.NONE
        self.why = "nothing was measured yet"
        self.chunks = 0
        self.trials = 0
        self._figures = {codec: Figures() for codec in candidates}
        self._next_trial = 0  # the count of chunks at which it is due

    def next_codecs(self) -> tuple[CodecNumber, ...]:
        """What to do with the next chunk: use the one codec named, or, if there are several, try them all."""
        number, self.chunks = self.chunks, self.chunks + 1
        if number < self._next_trial:
            return (self.decision,)
        self.trials += 1
        rare = TRIAL_EVERY_IDLE if self.decision is CodecNumber.NONE else TRIAL_EVERY
        self._next_trial = self.chunks + (0 if self.trials < TRIALS_FIRST else rare)
        return tuple(self._figures)

    def note(self, measure: Measure) -> None:
        """What a codec did to a section of this plane; decides anew."""
        if measure.codec in self._figures:
            self._figures[measure.codec].add(measure)
            self._decide()

    def _decide(self) -> None:
        """From the cheapest to the dearest: each must save enough more than the best before it."""
        best, saved = CodecNumber.NONE, 0.0
        for codec, figures in sorted(self._figures.items(), key=lambda item: item[1].cpu_ns_per_byte):
            if figures.saved >= saved + PAYS_MIN:
                best, saved = codec, figures.saved
        self.decision = best
        if best is CodecNumber.NONE:
            most = max(figures.saved for figures in self._figures.values())
            self.why = f"no codec saves {PAYS_MIN:.0%}: the best saves {most:.1%}"
        else:
            self.why = f"it saves {saved:.1%}, and none saves {PAYS_MIN:.0%} more for more CPU"

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {
            "decision": self.decision.name.lower(),
            "why": self.why,
            "chunks": self.chunks,
            "trials": self.trials,
            "codecs": {codec.name.lower(): figures.status() for codec, figures in self._figures.items()},
        }
