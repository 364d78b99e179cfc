"""Exit codes of `flexkv`: one meaning each, whatever the command. Scripts rely on them, `docs/cli.md` lists them."""

from __future__ import annotations

from enum import IntEnum

from flexkv_py.errors import ErrorCode, FlexKVError


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    WRONG = 1
    USAGE = 2
    NO_ANSWER = 3
    NOT_AUTHORISED = 4
    NOT_FOUND = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.WRONG: (
        "it ran, and something is wrong: damage found, a check or a job that failed, bytes that differ; or the daemon "
        "refuses for now (it drains, the tier is down, a limit is reached)"
    ),
    ExitCode.USAGE: "the command line, a file or a value is wrong: nothing was done",
    ExitCode.NO_ANSWER: "the daemon does not answer",
    ExitCode.NOT_AUTHORISED: "the daemon asks for a token, or for one with more rights",
    ExitCode.NOT_FOUND: "what was named is not there",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}

_OF_ERROR = {
    ErrorCode.DAEMON_LOST: ExitCode.NO_ANSWER,
    ErrorCode.UNAUTHENTICATED: ExitCode.NOT_AUTHORISED,
    ErrorCode.FORBIDDEN: ExitCode.NOT_AUTHORISED,
    ErrorCode.NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.CONFLICT: ExitCode.WRONG,
    ErrorCode.THROTTLED: ExitCode.WRONG,
    ErrorCode.LIMIT_EXCEEDED: ExitCode.WRONG,
    ErrorCode.DEADLINE_EXCEEDED: ExitCode.WRONG,
    ErrorCode.CANCELLED: ExitCode.WRONG,
    ErrorCode.DRAINING: ExitCode.WRONG,
    ErrorCode.NOT_READY: ExitCode.WRONG,
    ErrorCode.TIER_UNAVAILABLE: ExitCode.WRONG,
    ErrorCode.INTERNAL: ExitCode.WRONG,
}


def exit_code(error: FlexKVError) -> ExitCode:
    """What a command that ends in this error exits with; most errors are those of its input."""
    return _OF_ERROR.get(error.code, ExitCode.USAGE)
