"""The command `flexkvd`: arguments, configuration, log, exit status.

Owns what happens before there is an event loop. Exit status: 0 after a drain, 2 when the daemon could
not start (configuration, socket, directory, bucket), 1 when it met a bug. Of `--healthy`: 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import sys
from pathlib import Path

import flexkv_py
from flexkv_py.errors import FlexKVError
from flexkv_tiers import open_files
from flexkvd.config import Config, load_config
from flexkvd.health import illness

log = logging.getLogger(__name__)

EXIT_OK, EXIT_BUG, EXIT_REFUSED = 0, 1, 2
EXIT_UNHEALTHY = 1
EPILOG = """\
Without --config the built-in defaults apply: DRAM only, sockets in /run/flexkvd.
flexkvd.example.toml lists every key with its default. SIGTERM drains and exits with status 0.
"""


class OneLine(logging.Formatter):
    """A record is a line, its traceback included: a log collector keeps it together."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon until it is told to stop."""
    given = _parser().parse_args(arguments)
    if sys.flags.optimize:
        return _refuse("python -O removes the assertions that guard the cache: start without -O and PYTHONOPTIMIZE")
    try:
        config = load_config(given.config)
    except FlexKVError as error:
        return _refuse(str(error))
    if given.healthy:
        return _say_health(config)
    from flexkvd import preflight  # noqa: PLC0415 - a health check need not wait for numpy

    if problems := preflight.problems(config):
        return _refuse(*map(str, problems))
    if given.check_config:
        return _say_fine(config, given.config or "the built-in configuration")
    faulthandler.enable()  # whoever ends a stuck daemon by SIGABRT, as a watchdog does, reads in the log where it stood
    open_files.raise_limit()
    _log_to_stderr(config)
    for warning in preflight.warnings(config):
        log.warning("%s", warning)
    return _run(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flexkvd",
        description="KV-cache daemon: serves the workers of one node from DRAM, SSD and S3.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file to read")
    parser.add_argument("--check-config", action="store_true", help="say whether it can start with this, exit")
    parser.add_argument("--healthy", action="store_true", help="ask the running daemon whether it is ready, exit")
    parser.add_argument("--version", action="version", version=f"flexkvd {flexkv_py.__version__}")
    return parser


def _run(config: Config) -> int:
    import uvloop  # noqa: PLC0415 - --help and --check-config need no loop

    from flexkvd.daemon import serve  # noqa: PLC0415 - likewise

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config))
    except FlexKVError as error:
        return _refuse(str(error))
    except OSError as error:
        if not open_files.is_out_of_files(error):
            raise
        return _refuse(str(open_files.out_of_files("the daemon cannot go on", error)))


def _log_to_stderr(config: Config) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=config.daemon.log_level.upper(), handlers=[handler], force=True)
    for name, level in (("uvicorn", logging.WARNING), ("uvicorn.error", logging.ERROR), ("asyncio", logging.WARNING)):
        logging.getLogger(name).setLevel(level)  # uvicorn warns of whatever garbage somebody sends


def _say_health(config: Config) -> int:
    why = illness(config.api)
    print(why or "ready")  # noqa: T201 - it is what was asked for
    return EXIT_OK if why is None else EXIT_UNHEALTHY


def _say_fine(config: Config, name: object) -> int:
    from flexkvd import preflight  # noqa: PLC0415 - as above

    for warning in (*preflight.warnings(config), *preflight.held_now(config)):
        print(f"flexkvd: warning: {warning}", file=sys.stderr)  # noqa: T201 - there is no log
    print(f"{name} is fine")  # noqa: T201 - it is what was asked for
    return EXIT_OK


def _refuse(*reasons: str) -> int:
    for why in reasons:
        print(f"flexkvd: {why}", file=sys.stderr)  # noqa: T201 - there is no log yet
    return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main())
