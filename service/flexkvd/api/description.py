"""`/openapi.json`: what FastAPI makes of the routes, completed with roles, examples and our own form of failures.

Owns the description only. Every example is put together from the fields' own, so it cannot be of another shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

JSON = "application/json"
NESTING_MAX = 16
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""Schemas of failures as FastAPI would answer them; ours are `shapes.Failure`."""

Operation = tuple[str, str, dict[str, Any]]
"""Method, path, description."""


def describe(app: FastAPI) -> dict[str, Any]:
    """The description, made once."""
    if app.openapi_schema is None:
        spec = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = spec["components"]["schemas"]
        for name in _FASTAPIS_OWN:
            schemas.pop(name, None)
        spec["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "A token of `[api] token_file`."}
        }
        spec["security"] = [{"token": []}]
        for _, _, operation in operations(spec):
            operation["responses"].pop("422", None)
            for content in _contents(operation):
                if "example" not in content and "schema" in content:
                    content["example"] = example_of(content["schema"], schemas)
        app.openapi_schema = spec
    return app.openapi_schema


def operations(spec: dict[str, Any]) -> Iterator[Operation]:
    """All operations, in the order of the routes."""
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def example_of(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A value of a schema, out of its fields' examples."""
    assert depth <= NESTING_MAX, "shapes nest in a circle"
    target = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "properties" in target and target is not schema:
        return example_of(target, schemas, depth + 1)
    if schema.get("type") == "array" and "$ref" in schema["items"]:
        return [example_of(schema["items"], schemas, depth + 1)]
    if "properties" in schema:
        return {name: example_of(each, schemas, depth + 1) for name, each in schema["properties"].items()}
    if schema.get("examples"):
        return schema["examples"][0]
    return schema.get("const", schema.get("default"))


def _contents(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON bodies an operation takes and gives."""
    for message in (operation.get("requestBody", {}), *operation["responses"].values()):
        if JSON in message.get("content", {}):
            yield message["content"][JSON]
