"""Makes a libcuda in C whose device is the process that loads it (`host_libcuda.c`), for processes of their own."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from flexkv_tiers.cuda import driver as real
from tests.tiers.lane_rigs import LIBRARY

ROOT = Path(__file__).parents[2]


def why_none() -> str:
    """Why it cannot be made or would not be loaded; empty if it can."""
    if shutil.which("cc") is None:
        return "no C compiler to make a driver's library with"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-bindings is not installed"
    try:
        ctypes.CDLL(real.LIBRARY)
    except OSError:
        return ""
    return "libcuda is here: the tests marked gpu call it for real"


def made_in(folder: Path, *, pins_read_only: bool = False) -> dict[str, str]:
    """Makes it there; the environment of a process that finds it."""
    source, library = ROOT / "tests/tiers/host_libcuda.c", folder / real.LIBRARY
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{real.LIBRARY}"]
    defined = f"-DREAD_ONLY_SUPPORTED={int(pins_read_only)}"
    subprocess.run(["cc", *flags, defined, "-o", library, source], check=True)
    path = os.pathsep.join(str(ROOT / each) for each in (".", "tiers", "service"))
    return os.environ | {"LD_LIBRARY_PATH": str(folder), LIBRARY: "1", "PYTHONPATH": path}
