"""Which codec a tier uses for which plane of which namespace: as configured, or as `AutoChoice` finds.

One per tier, on the daemon's loop. It gives orders for the chunks of a record and takes what came of
them; the bytes are moved elsewhere. Knows a namespace's sections once the service has introduced it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.codec.auto import AutoChoice
from flexkv_tiers.codec.plan import CodecNumber, Measure, Order, Section, SectionPlan, unknown_plan

AUTO = "auto"
CODEC_NAMES = (*(number.name.lower() for number in CodecNumber), AUTO)
"""What a plane's codec can be set to."""

NAMESPACES_MAX = 256
"""Namespaces whose plans and figures are kept; the one introduced or met longest ago is forgotten first."""


class _Namespace:
    """One namespace's plan, and the choice of each plane that is left to `AutoChoice`."""

    def __init__(self, plan: SectionPlan) -> None:
        self.plan = plan
        self.lengths = tuple(sum(section.raw_bytes for section in chunk) for chunk in plan)
        self.choices: dict[str, AutoChoice] = {}


class CodecChooser:
    """A tier's codecs: `default` for every plane that `planes` does not name."""

    def __init__(self, default: str, planes: Mapping[str, str] | None = None) -> None:
        self._names = dict(planes or {})
        self._default = default
        self._namespaces: dict[NamespaceDigest, _Namespace] = {}
        assert {default, *self._names.values()} <= set(CODEC_NAMES)

    @property
    def compresses(self) -> bool:
        """Whether any plane might be."""
        return any(name != CodecNumber.NONE.name.lower() for name in (self._default, *self._names.values()))

    def introduce(self, namespace: NamespaceDigest, plan: SectionPlan) -> None:
        """Blocks of this namespace consist of these sections."""
        known = self._namespaces.pop(namespace, None)  # put at the end again: met last
        if known is None or known.plan != plan:
            known = _Namespace(plan)
        self._namespaces[namespace] = known
        if len(self._namespaces) > NAMESPACES_MAX:
            del self._namespaces[next(iter(self._namespaces))]

    def orders(self, namespace: NamespaceDigest, lengths: Sequence[int]) -> list[list[Order]]:
        """What to do with each section of each chunk of a record; empty when all is to be stored as it is."""
        if not self.compresses:
            return []
        known = self._namespaces.get(namespace)
        if known is None or known.lengths != tuple(lengths):
            self.introduce(namespace, unknown_plan(tuple(lengths)))
            known = self._namespaces[namespace]
        orders = [[Order(each.raw_bytes, self._codecs(known, each)) for each in chunk] for chunk in known.plan]
        plain = all(order.codecs == (CodecNumber.NONE,) for chunk in orders for order in chunk)
        return [] if plain else orders

    def note(self, namespace: NamespaceDigest, measures: Sequence[Sequence[Measure]]) -> None:
        """What came of the orders for one record, by chunk."""
        known = self._namespaces.get(namespace)
        if known is None:
            return
        for chunk, measured in zip(known.plan, measures, strict=False):
            for measure in measured:
                if measure.section < len(chunk) and (choice := known.choices.get(chunk[measure.section].plane)):
                    choice.note(measure)

    def status(self) -> dict[str, object]:
        """Facts for people: what is set, and what the automatic choice found for each namespace and plane."""
        return {
            "default": self._default,
            "planes": self._names,
            "auto": {
                namespace.hex(): {plane or "all": choice.status() for plane, choice in known.choices.items()}
                for namespace, known in self._namespaces.items()
            },
        }

    def _codecs(self, known: _Namespace, section: Section) -> tuple[CodecNumber, ...]:
        name = self._names.get(section.plane, self._default)
        if name != AUTO:
            return (CodecNumber[name.upper()],)
        choice = known.choices.get(section.plane)
        if choice is None:
            choice = known.choices[section.plane] = AutoChoice(_candidates(section))
        return choice.next_codecs()


def _candidates(section: Section) -> tuple[CodecNumber, ...]:
    """Planes only pay on two-byte numbers; where nobody says what elements are, they are tried like the rest."""
    if section.element_bytes in (0, 2):
        return (CodecNumber.LZ4, CodecNumber.ZSTD, CodecNumber.PLANES)
    return (CodecNumber.LZ4, CodecNumber.ZSTD)
