"""What indexers select, step by step: generated with published statistics, or read from a recording."""

from flexkvd.selections.exchange import read_selections, write_selections
from flexkvd.selections.generator import Selections
from flexkvd.selections.workload import PRESETS, Preset, Selection, Workload

__all__ = ["PRESETS", "Preset", "Selection", "Selections", "Workload", "read_selections", "write_selections"]
