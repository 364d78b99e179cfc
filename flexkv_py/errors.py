"""Every error a user or a worker can meet, with its code.

Owns the codes; owns no policy of who may retry. A code is part of the protocol: it travels on the
socket, in REST answers and in metrics, so it never changes its meaning.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """What went wrong, as a stable word."""

    BAD_MESSAGE = "bad_message"
    MESSAGE_TOO_LARGE = "message_too_large"
    VERSION_MISMATCH = "version_mismatch"
    NOT_GREETED = "not_greeted"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    UNSUPPORTED = "unsupported"
    BAD_GEOMETRY = "bad_geometry"
    GEOMETRY_MISMATCH = "geometry_mismatch"
    BAD_ARGUMENT = "bad_argument"
    BAD_KEY = "bad_key"
    DUPLICATE_KEY = "duplicate_key"
    PAGE_OUT_OF_RANGE = "page_out_of_range"
    UNKNOWN_MEMORY = "unknown_memory"
    BAD_MEMORY = "bad_memory"
    CUDA_MISSING = "cuda_missing"
    DEVICE_UNKNOWN = "device_unknown"
    UNKNOWN_TICKET = "unknown_ticket"
    UNKNOWN_LEASE = "unknown_lease"
    UNKNOWN_REQUEST = "unknown_request"
    ACK_OVERDUE = "ack_overdue"
    LIMIT_EXCEEDED = "limit_exceeded"
    THROTTLED = "throttled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    DAEMON_LOST = "daemon_lost"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    TIER_UNAVAILABLE = "tier_unavailable"
    BAD_CONFIG = "bad_config"
    BAD_SOCKET_PATH = "bad_socket_path"
    ALREADY_RUNNING = "already_running"
    DIRECTORY_LOCKED = "directory_locked"
    DIRECTORY_FOREIGN = "directory_foreign"
    DIRECTORY_MISSING = "directory_missing"
    DIRECTORY_OUTDATED = "directory_outdated"
    DIRECTORY_NOT_WRITABLE = "directory_not_writable"
    DIRECTORY_UNREADABLE = "directory_unreadable"
    DISK_FULL = "disk_full"
    OUT_OF_FILES = "out_of_files"
    S3_UNREACHABLE = "s3_unreachable"
    S3_BUCKET_MISSING = "s3_bucket_missing"
    S3_DENIED = "s3_denied"
    S3_EXPIRED = "s3_expired"
    BAD_TRACE = "bad_trace"
    BAD_RECORDING = "bad_recording"
    INTERNAL = "internal"


class FlexKVError(Exception):
    """An expected failure: a code for programs, a sentence that names cause and cure for people.

    `retry_after_s` is set where trying again later is the cure (`throttled`).
    """

    def __init__(self, code: ErrorCode, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"[{self.code.value}] {self.message}"
