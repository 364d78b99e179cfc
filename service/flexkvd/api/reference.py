"""docs/rest.md, made from the API's own description: `python -m flexkvd.api.reference > docs/rest.md`.

Owns the page's form; a test says when the file is stale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from flexkvd.api.app import make_app
from flexkvd.api.description import JSON, describe, operations
from flexkvd.api.guard import needed_role

_REFERENCE = re.compile(r"#/components/schemas/(\w+)")

INTRODUCTION = """\
# REST admin API

<!-- Made by `python -m flexkvd.api.reference`: change the routes, not this page. -->

JSON over HTTP on the Unix socket of `[api] socket` (the daemon's user only), or on `[api] host` and `port`, with TLS if
`tls_certificate_file` and `tls_key_file` are given. `/openapi.json` says the same in machine form, with every limit.

```
curl --unix-socket /run/flexkvd/admin.sock http://localhost/v1/status
```

**Tokens.** Without `[api] token_file` whoever reaches the API may do everything; an address other than loopback is
refused then. With one, `Authorization: Bearer TOKEN` is asked for. A file with one bare line is one token that may do
everything; else each line is `read TOKEN` or `admin TOKEN`, `#` begins a comment. A `read` token may GET everything, an
`admin` token may do all. No token and a wrong one are 401, a role that is too low is 403. Tokens never appear in an
answer or the log. Without a token file a `Host` that is neither loopback nor `[api] host`, and an `Origin` that is not
that `Host`, are 403: a page of another site may not use the API through a browser.

**Failures** are a status with `{"code": …, "message": …}`; the codes are those of [errors.md](errors.md). 400: the
request is wrong. 409: the daemon's present state does not allow it (`draining`, `tier_unavailable`, `limit_exceeded`,
`conflict`). 413: more than `[api] body_bytes_max`. 429: more than `[api] requests_per_s_max` or `connections_max`; wait
`Retry-After` seconds. 5xx: something is broken, and the log says what; only `/readyz` says 503 of a daemon that is well
but not ready.

**Long work** answers 202 with a job: ask `GET /v1/jobs/{number}` for its progress or listen to `GET /v1/events`, and
`DELETE /v1/jobs/{number}` to cancel it. The last 100 that ended are kept.
"""


def text() -> str:
    """The whole page."""
    spec = describe(make_app(None))
    schemas = spec["components"]["schemas"]
    lines = [INTRODUCTION, "| route | role | |", "|---|---|---|"]
    lines += [
        f"| `{method} {path}` | {_role(method, path)} | {operation['summary']} |"
        for method, path, operation in operations(spec)
    ]
    for method, path, operation in operations(spec):
        lines += ["", *_section(method, path, operation, schemas)]
    lines += ["", "# Shapes"]
    for name in sorted(_answered(spec)):
        lines += ["", *_shape_table(name, schemas[name])]
    return "\n".join(lines) + "\n"


def _answered(spec: dict[str, Any]) -> set[str]:
    """Names of all shapes that answers are made of."""
    found: set[str] = set()
    waiting = [operation["responses"] for _, _, operation in operations(spec)]
    while waiting:
        new = set(_REFERENCE.findall(json.dumps(waiting.pop()))) - found
        found |= new
        waiting += [spec["components"]["schemas"][name] for name in new]
    return {name for name in found if "properties" in spec["components"]["schemas"][name]}


def _shape_table(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {name}", "", schema["description"], "", "| field | form | example | |", "|---|---|---|---|")
    for field, of_field in schema["properties"].items():
        nested = _REFERENCE.search(json.dumps(of_field)) or not of_field.get("examples")
        shown = "" if nested else f"`{json.dumps(of_field['examples'][0], ensure_ascii=False)}`"
        yield f"| `{field}` | {_form(of_field)} | {shown} | {of_field.get('description', '')} |"


def _form(schema: dict[str, Any]) -> str:
    """A field's type, with links to shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "code" if name == "ErrorCode" else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_form(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_form(schema['items'])}"
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        return f"object of {_form(inner)}"
    return str(schema.get("type", "any"))


def _role(method: str, path: str) -> str:
    role = needed_role(method, path)
    return "open" if role is None else role.value


def _section(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {method} {path}", "", operation["description"])
    asked = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    if asked:
        yield from ("", "| parameter | default | |", "|---|---|---|")
        yield from (_row(each["name"], each["schema"], each.get("description", "")) for each in asked)
    content = operation.get("requestBody", {}).get("content", {}).get(JSON)
    if content is not None:
        shape = schemas[content["schema"]["$ref"].rpartition("/")[2]] if "$ref" in content["schema"] else {}
        if "properties" in shape:
            yield from ("", "| field of the body | default | |", "|---|---|---|")
            yield from (_row(name, each, each.get("description", "")) for name, each in shape["properties"].items())
        yield from ("", "```json", json.dumps(content["example"], indent=1, ensure_ascii=False), "```")
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            yield from _answer(status, response)
    failing = [
        f"{status} `{response['content'][JSON]['example']['code']}`"
        for status, response in operation["responses"].items()
        if status[0] in "45" and "code" in response.get("content", {}).get(JSON, {}).get("example", {})
    ]
    if failing:
        yield from ("", f"Failures: {', '.join(failing)}.")


def _answer(status: str, response: dict[str, Any]) -> Iterator[str]:
    for kind, content in response.get("content", {}).items():
        if kind == JSON:
            yield from ("", f"{status}: {_form(content['schema'])}.")
        else:
            yield from ("", f"{status}, {kind}: {response['description']}")
            yield from (("", "```", content["example"].strip(), "```") if "example" in content else ())


def _row(name: str, schema: dict[str, Any], meaning: str) -> str:
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
    return f"| `{name}` | {default} | {meaning or schema.get('description', '')} |"


if __name__ == "__main__":
    sys.stdout.write(text())
