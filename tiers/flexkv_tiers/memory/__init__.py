"""Memory that more than one process sees: the daemon's arena and the workers' registered KV."""

from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.layout import PageRun, Strand, page_runs
from flexkv_tiers.memory.memfd import sealed_memfd
from flexkv_tiers.memory.worker import HostMemory, WorkerMemory

__all__ = ["Arena", "HostMemory", "PageRun", "Strand", "WorkerMemory", "page_runs", "sealed_memfd"]
