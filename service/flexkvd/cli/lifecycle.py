"""`flexkv s3-lifecycle`: the bucket's own rules for what the daemon's owner otherwise cleans up.

Rules are the server's: coarse (whole days) but alive when no daemon is. Printed unless told to write, and
written beside the rules of others: a bucket has one list of them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output
from flexkvd.cli.connecting import add_command
from flexkvd.config import load_config
from flexkvd.tier_tables import DAY_S, S3Table

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ABORT_DAYS = 1
RULES_MAX = 1000
"""S3's limit for one bucket."""

DESCRIPTION = (
    "Prints the lifecycle rules that fit [s3] of a configuration, as S3 wants them: uploads in parts that were "
    "abandoned are given up after a day, and with ttl_s set, objects are deleted once they are that old (in whole "
    "days, at least one). With --write they become rules of the bucket; rules of others stay as they are. With --write "
    "and --json {bucket, rules, ours}."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `s3-lifecycle` to the commands of `flexkv`."""
    examples = ("flexkv s3-lifecycle --config flexkvd.toml", "flexkv s3-lifecycle --config flexkvd.toml --write")
    about = "lifecycle rules for the bucket"
    parser = add_command(commands, "s3-lifecycle", about, DESCRIPTION, examples, daemon=False)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the daemon's TOML file")
    parser.add_argument("--write", action="store_true", help="write them to the bucket")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    table = load_config(given.config).s3
    if table is None:
        raise FlexKVError(ErrorCode.BAD_CONFIG, f"{given.config} has no table [s3]: name the file of a daemon with S3")
    rules = lifecycle_rules(table.prefix, table.ttl_s)
    if given.write:
        count = write_rules(table, rules)
        answer = {"bucket": table.bucket, "rules": count, "ours": len(rules)}
        output.emit(given, answer, lambda told: [_written(told, table.prefix)])
    else:
        print(json.dumps({"Rules": rules}, indent=2))
    return 0


def _written(told: Mapping[str, Any], prefix: str) -> str:
    return f"s3://{told['bucket']} has {told['rules']} lifecycle rules now, {told['ours']} of them of prefix {prefix!r}"


def lifecycle_rules(prefix: str, ttl_s: float) -> list[dict[str, Any]]:
    """The rules as S3 wants them; their IDs say whose they are."""
    start = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    common = {"Status": "Enabled", "Filter": {"Prefix": start}}
    name = f"flexkv {start}"
    abort = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS}}
    rules: list[dict[str, Any]] = [{"ID": f"{name} abort", **common, **abort}]
    if ttl_s:
        rules.append({"ID": f"{name} expire", **common, "Expiration": {"Days": max(1, math.ceil(ttl_s / DAY_S))}})
    return rules


def write_rules(table: S3Table, rules: list[dict[str, Any]]) -> int:
    """Put them in place of earlier ones of the same prefix; how many rules the bucket has now. Raises FlexKVError."""
    from flexkv_tiers.s3.client import BucketClient  # noqa: PLC0415 - boto3: 0.3 s that other commands need not pay
    from flexkv_tiers.s3.faults import start_error, trouble_of  # noqa: PLC0415 - likewise
    from flexkv_tiers.s3.messages import Failed  # noqa: PLC0415 - likewise
    from flexkvd.stores import s3_config  # noqa: PLC0415 - likewise

    config = s3_config(table)
    bucket = BucketClient(config)
    try:
        ours = {rule["ID"].rpartition(" ")[0] for rule in rules}
        kept = [
            rule for rule in _rules_of(bucket.client, table.bucket) if rule.get("ID", "").rpartition(" ")[0] not in ours
        ]
        if len(kept) + len(rules) > RULES_MAX:
            why = (
                f"s3://{table.bucket} has {len(kept)} lifecycle rules of others, and S3 takes {RULES_MAX}: remove some"
            )
            raise FlexKVError(ErrorCode.LIMIT_EXCEEDED, why)
        everything: list[Any] = [*kept, *rules]
        bucket.client.put_bucket_lifecycle_configuration(
            Bucket=table.bucket,
            LifecycleConfiguration={"Rules": everything},
        )
    except Exception as error:
        trouble = trouble_of(error)
        if trouble is None:
            raise
        raise start_error(Failed(trouble, f"lifecycle rules: {error}"), config.place) from error
    finally:
        bucket.close()
    return len(kept) + len(rules)


def _rules_of(client: S3Client, bucket: str) -> list[dict[str, Any]]:
    """The bucket's rules; one without any answers with an error."""
    try:
        return list(client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"])  # type: ignore[arg-type]
    except client.exceptions.ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
            return []
        raise
