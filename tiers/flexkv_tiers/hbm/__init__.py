"""Hot rows in HBM: which rows of a running request lie in the worker's hot buffer, and how missing ones come in.

A worker embeds this package; the daemon never imports it. Semantics of a step: docs/row-path.md.
"""
