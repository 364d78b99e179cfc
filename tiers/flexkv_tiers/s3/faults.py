"""What errors of S3 mean: from whatever boto3 raises to a trouble, from a trouble to a fault or a code.

Pure. `trouble_of` is called in the byte worker, the rest by the store. boto3 is imported only there.
"""

from __future__ import annotations

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3.messages import Failed, Trouble

FAULT_OF = {
    Trouble.MISSING: Fault.MISSING,
    Trouble.CORRUPT: Fault.CORRUPT,
    Trouble.FULL: Fault.FULL,
    Trouble.DENIED: Fault.DOWN,
    Trouble.EXPIRED: Fault.DOWN,
    Trouble.SKEWED: Fault.DOWN,
    Trouble.REGION: Fault.DOWN,
    Trouble.CERTIFICATE: Fault.DOWN,
    Trouble.BUCKET_MISSING: Fault.DOWN,
    Trouble.UNREACHABLE: Fault.DOWN,
    Trouble.THROTTLED: Fault.IO,
    Trouble.TIMEOUT: Fault.LATE,
    Trouble.SILENT: Fault.DOWN,
    Trouble.SCHEME: Fault.DOWN,
    Trouble.FOREIGN: Fault.DOWN,
    Trouble.SERVER: Fault.IO,
    Trouble.CUT: Fault.IO,
    Trouble.REFUSED: Fault.IO,
    Trouble.STOPPED: Fault.LATE,
}

WORTH_RETRYING = frozenset({Trouble.UNREACHABLE, Trouble.THROTTLED, Trouble.TIMEOUT, Trouble.SERVER, Trouble.CUT})
"""Another try of the same request may succeed."""

SECOND_LOOK = frozenset({Trouble.CORRUPT})
"""Perhaps it was spoilt on its way: one more look, before the object itself is given up."""

HOPELESS = frozenset(
    {
        Trouble.DENIED,
        Trouble.EXPIRED,
        Trouble.SKEWED,
        Trouble.REGION,
        Trouble.CERTIFICATE,
        Trouble.SCHEME,
        Trouble.FOREIGN,
        Trouble.BUCKET_MISSING,
    }
)
"""No request can succeed until somebody changes something."""

CONCLUSIVE = HOPELESS | {Trouble.SILENT}
"""One of these is enough to stop asking."""

OUTAGES = WORTH_RETRYING | CONCLUSIVE | {Trouble.STOPPED}
"""The bucket as a whole did not serve us; anything else is an answer about one object."""

UNHEARD = frozenset({Trouble.UNREACHABLE, Trouble.TIMEOUT, Trouble.STOPPED})
"""The attempt ended without a word from the server."""

NEW_LOOK = frozenset({Trouble.DENIED, Trouble.EXPIRED})
"""Other credentials may lie where boto3 looks for them by now."""

_CURE = {
    Trouble.DENIED: (
        "check the credentials boto3 finds (environment, profile or role) and that they may list, get, put and "
        "delete in s3.bucket"
    ),
    Trouble.EXPIRED: "renew the credentials where boto3 finds them; they are read again by themselves",
    Trouble.SKEWED: "set this machine's clock: the server takes requests whose time is within some minutes of its own",
    Trouble.REGION: "set s3.region to the bucket's own region, or s3.endpoint_url to the server that has it",
    Trouble.CERTIFICATE: (
        "set s3.ca_bundle to a file with the certificate of the authority that signed the server's, "
        "and s3.endpoint_url to a name that stands in it"
    ),
    Trouble.SCHEME: (
        "begin s3.endpoint_url with http:// if the server speaks plain HTTP there, with https:// if it speaks TLS"
    ),
    Trouble.FOREIGN: (
        "set s3.endpoint_url to the server that speaks S3: this is another one, or a page of something in between"
    ),
    Trouble.BUCKET_MISSING: (
        "create the bucket or correct s3.bucket, and s3.region or s3.endpoint_url if it is elsewhere"
    ),
    Trouble.UNREACHABLE: (
        "check that the server runs, that s3.endpoint_url is right (http or https, name, port) and, where the bucket's "
        "name stands in the host name, s3.addressing_style; if there is a proxy: HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    ),
    Trouble.TIMEOUT: "check the server's load; s3.connect_timeout_s and s3.read_timeout_s say how long we wait",
    Trouble.SILENT: (
        "check the server and the network on the way; s3.silence_s says how long we wait before we ask whether it is "
        "there, and how long for the answer"
    ),
    Trouble.STOPPED: "check the server's load; s3.operation_timeout_s says how long a move may take",
    Trouble.THROTTLED: "lower s3.processes or s3.threads, or raise the server's limits",
    Trouble.REFUSED: (
        "check s3.bucket, s3.region, s3.addressing_style ('path' for most servers but AWS), s3.sse and "
        "s3.sse_kms_key_id"
    ),
    Trouble.SERVER: "look into the server's log: it failed by its own account",
    Trouble.CUT: (
        "check the network and what stands between us and the server; if it never worked, whether s3.endpoint_url "
        "begins with the http or https that is spoken there"
    ),
    Trouble.MISSING: "nothing is to be done if it was deleted on purpose; else check s3.prefix",
    Trouble.CORRUPT: "nothing is to be done, the block is saved anew when it is wanted; many of these: a bad network",
    Trouble.FULL: "make room in the bucket or raise its quota",
}

_CODE = {
    Trouble.DENIED: ErrorCode.S3_DENIED,
    Trouble.EXPIRED: ErrorCode.S3_EXPIRED,
    Trouble.SKEWED: ErrorCode.S3_EXPIRED,
    Trouble.REGION: ErrorCode.BAD_CONFIG,
    Trouble.BUCKET_MISSING: ErrorCode.S3_BUCKET_MISSING,
    Trouble.REFUSED: ErrorCode.BAD_CONFIG,
    Trouble.SCHEME: ErrorCode.BAD_CONFIG,
}

_TROUBLE_OF_CODE = {
    "NoSuchKey": Trouble.MISSING,
    "NoSuchBucket": Trouble.BUCKET_MISSING,
    "AccessDenied": Trouble.DENIED,
    "InvalidAccessKeyId": Trouble.DENIED,
    "SignatureDoesNotMatch": Trouble.DENIED,
    "ExpiredToken": Trouble.EXPIRED,
    "ExpiredTokenException": Trouble.EXPIRED,
    "TokenRefreshRequired": Trouble.EXPIRED,
    "InvalidToken": Trouble.EXPIRED,
    "RequestTimeTooSkewed": Trouble.SKEWED,
    "RequestExpired": Trouble.SKEWED,
    "AuthorizationHeaderMalformed": Trouble.REGION,
    "PermanentRedirect": Trouble.REGION,
    "TemporaryRedirect": Trouble.REGION,
    "SlowDown": Trouble.THROTTLED,
    "TooManyRequests": Trouble.THROTTLED,
    "ServiceUnavailable": Trouble.THROTTLED,
    "RequestTimeout": Trouble.TIMEOUT,
    "InvalidRange": Trouble.CORRUPT,  # the object is shorter than its record
    "QuotaExceeded": Trouble.FULL,
    "InternalError": Trouble.SERVER,  # also of one object in a batch whose status is 200
}
_TROUBLE_OF_STATUS = {
    301: Trouble.REGION,
    307: Trouble.REGION,
    401: Trouble.DENIED,
    403: Trouble.DENIED,
    404: Trouble.MISSING,
    416: Trouble.CORRUPT,
    429: Trouble.THROTTLED,
    503: Trouble.THROTTLED,
    507: Trouble.FULL,
}


def answer_trouble(code: str, status: int) -> Trouble:
    """What an error answer of the server means, by its code, else by its HTTP status."""
    if code in _TROUBLE_OF_CODE:
        return _TROUBLE_OF_CODE[code]
    if status in _TROUBLE_OF_STATUS:
        return _TROUBLE_OF_STATUS[status]
    return Trouble.SERVER if status >= 500 else Trouble.REFUSED


def trouble_of(error: Exception) -> Trouble | None:
    """What an exception of boto3 or below means; None when it is not one that S3 can cause."""
    # Imported here, because the daemon imports this module and must not pay 0.3 s for boto3.
    from botocore import exceptions as boto  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    if isinstance(error, boto.ClientError):
        answer = error.response
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return answer_trouble(answer.get("Error", {}).get("Code", ""), status)
    if isinstance(error, boto.ReadTimeoutError | TimeoutError):
        return Trouble.TIMEOUT
    if isinstance(error, boto.SSLError):
        return Trouble.SCHEME if "WRONG_VERSION_NUMBER" in str(error) else Trouble.CERTIFICATE
    if isinstance(error, boto.ConnectionError):
        return Trouble.UNREACHABLE
    if isinstance(error, _credential_errors()):
        return Trouble.DENIED
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | HTTPError | OSError):
        return Trouble.CUT
    return Trouble.REFUSED if isinstance(error, boto.BotoCoreError) else None


def _credential_errors() -> tuple[type[Exception], ...]:
    from botocore import exceptions as boto  # noqa: PLC0415 - as above

    return (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.CredentialRetrievalError,
        boto.ProfileNotFound,
        boto.TokenRetrievalError,
        boto.SSOError,
    )


def cure_of(trouble: Trouble) -> str:
    """What to do about it; no two troubles have the same."""
    return _CURE[trouble]


def explained(failure: Failed) -> str:
    """The failure's detail with its cure: there is one for every trouble."""
    return f"{failure.detail}: {_CURE[failure.trouble]}"


def tier_fault(failure: Failed) -> TierFault:
    """The failure as the executor hears of it."""
    return TierFault(FAULT_OF[failure.trouble], explained(failure))


def start_error(failure: Failed, place: str) -> FlexKVError:
    """Why the tier at `place` (bucket and prefix) cannot start, as the coded error a person meets."""
    code = _CODE.get(failure.trouble, ErrorCode.S3_UNREACHABLE)
    return FlexKVError(code, f"{place} cannot be used: {explained(failure)}")
