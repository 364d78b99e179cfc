"""Benchmarks, one part a module: each has `rows()`, which measures now. Run by `scripts/bench`."""
