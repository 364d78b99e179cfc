"""`flexkv tenants`: who has how much, and quotas that may change while the daemon runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output, words
from flexkvd.cli.admin import path_of
from flexkvd.cli.arguments import byte_size, weight
from flexkvd.cli.connecting import add_command, client_of

QUOTA_TIERS = ("dram", "ssd", "s3")
Answer = Mapping[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `tenants` to the commands of `flexkv`."""
    about = (
        "Lists tenants with what they hold, or shows one. With --dram, --ssd, --s3 or --weight the tenant's quota "
        "is changed, the other parts stay; it holds at once and over restarts. With --json the answer of GET "
        "/v1/tenants or GET /v1/tenants/TENANT."
    )
    examples = (
        "flexkv tenants",
        "flexkv tenants team-a --dram 8GiB --ssd 100GiB",
        "flexkv tenants team-a --weight 2",
        "flexkv tenants team-a --remove-quota",
    )
    parser = add_command(commands, "tenants", "tenants and their quotas", about, examples)
    parser.add_argument("tenant", nargs="?", metavar="TENANT", help="a tenant's name (all)")
    for tier in QUOTA_TIERS:
        parser.add_argument(f"--{tier}", type=byte_size, metavar="SIZE", help=f"room in {tier}; 0: no limit")
    parser.add_argument("--weight", type=weight, metavar="N", help="share under pressure, beside others' (1)")
    parser.add_argument("--remove-quota", action="store_true", help="back to what the configuration says")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """List, show or change."""
    client = client_of(chosen)
    given = {f"{tier}_bytes": getattr(chosen, tier) for tier in QUOTA_TIERS} | {"weight": chosen.weight}
    changes = {name: each for name, each in given.items() if each is not None}
    if chosen.tenant is None:
        if changes or chosen.remove_quota:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT, "a quota is one tenant's: name it, as in flexkv tenants team-a --dram 8GiB"
            )
        output.emit(chosen, client.call("GET", path_of("tenants")), view_tenants)
        return 0
    if changes and chosen.remove_quota:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, "--remove-quota takes away what the other options would set: give one or the other"
        )
    quota_path = path_of("tenants", chosen.tenant, "quota")
    if changes:
        kept = _quota(client.call("GET", path_of("tenants"))["tenants"], chosen.tenant)
        tenant = client.call("PUT", quota_path, kept | changes)
    elif chosen.remove_quota:
        tenant = client.call("DELETE", quota_path)  # what is left of it: a tenant may have been no more than its quota
    else:
        tenant = client.call("GET", path_of("tenants", chosen.tenant))
    output.emit(chosen, tenant, view_tenant)
    return 0


def _quota(tenants: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """What a tenant has now; one that has not come yet may be given a quota all the same."""
    named = (tenant["quota"] for tenant in tenants if tenant["name"] == name)
    return dict(next(named, None) or dict.fromkeys((f"{tier}_bytes" for tier in QUOTA_TIERS), 0) | {"weight": 1.0})


def view_tenants(answer: Answer) -> Iterator[RenderableType]:
    """Of {tenants}: used of quota in each tier."""
    made = output.table("tenant", *QUOTA_TIERS, "weight", "hits", "hit ratio", "refused", right=range(1, 8))
    for tenant in answer["tenants"]:
        rooms = [used_words(tenant, tier) for tier in QUOTA_TIERS]
        counts = (words.count(tenant["hits"]), words.share(tenant["hit_ratio"], 1), words.count(tenant["refused"]))
        made.add_row(name_of(tenant), *rooms, f"{(tenant['quota'] or {}).get('weight', 1):g}", *counts)
    yield made if answer["tenants"] else "no tenant has come yet"


def view_tenant(tenant: Answer) -> Iterator[RenderableType]:
    """Of one tenant."""
    pairs = [(tier, f"{used_words(tenant, tier)}, {tenant['blocks'].get(tier, 0)} blocks") for tier in QUOTA_TIERS]
    pairs += [
        (name.replace("_", " "), words.count(tenant[name])) for name in ("hits", "misses", "refused", "evictions")
    ]
    pairs.append(("hit ratio", words.share(tenant["hit_ratio"], 1)))
    pairs.append(("saved", words.size(tenant["saved_bytes"])))
    pairs.append(("weight", f"{(tenant['quota'] or {}).get('weight', 1):g}"))
    yield output.facts([("tenant", name_of(tenant)), *pairs])


def name_of(tenant: Answer) -> str:
    """Nothing is a name too, in quotes; what is no tenant is told by its kind, in brackets."""
    return str(tenant["name"] or '""') if tenant["kind"] == "named" else f"({tenant['kind']})"


def used_words(tenant: Answer, tier: str) -> str:
    """`used of quota`."""
    quota = (tenant["quota"] or {}).get(f"{tier}_bytes", 0)
    used = words.size(tenant["used"].get(tier, 0))
    return f"{used} of {words.size(quota)}" if quota else used
