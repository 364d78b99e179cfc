"""flexkvd's vocabulary, pure planner, wire protocol and client."""

__version__ = "0.1.0"
