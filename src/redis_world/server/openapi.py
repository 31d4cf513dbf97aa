"""The OpenAPI document of the server, made from the table of methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from redis_world import __version__
from redis_world.server import arguments as a
from redis_world.server.methods import METHODS
from redis_world.server.wire import CBOR, CBOR_SEQUENCE, JSON

__all__ = ["document"]

_REF: Final = "#/components/schemas/{model}"
_ERROR: Final = {
    "type": "object",
    "required": ["status", "code", "message"],
    "properties": {
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "message": {"type": "string"},
        "retryAfter": {"type": "integer", "description": "Seconds after which to try again."},
        "reason": {"type": "string", "enum": ["duplicate", "step_terminal", "run_terminal"]},
    },
}
_REFUSALS: Final = {
    "400": "bad input; nothing was stored",
    "401": "no valid token",
    "403": "the token's role does not allow it",
    "404": "no such run, step, hook, wait, event or message",
    "405": "this HTTP method is not allowed; see Allow",
    "408": "the body took too long",
    "409": "conflict",
    "410": "the run has ended",
    "413": "the body is too large",
    "415": "the body is neither CBOR nor JSON",
    "422": "the resume id stands for another hook or payload",
    "425": "a step was started before its time; see Retry-After",
    "429": "too many requests at a time; see Retry-After",
    "503": "Redis is away",
}


class _Schemas(GenerateJsonSchema):
    """Schemas of what travels: bytes have no JSON type of their own."""

    def bytes_schema(self, schema: CoreSchema) -> JsonSchemaValue:
        """Bytes as JSON has them here."""
        del schema
        return {
            "type": "object",
            "required": ["base64"],
            "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
        }


@cache
def document() -> dict[str, Any]:
    """The document, as plain JSON values."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for method in METHODS.values():
        result = (
            None if method.result is None else _schema(method.result, schemas, "serialization")
        )
        arguments = method.arguments
        paths[f"/v1/{method.name}"] = _path(
            method.name, method.summary, arguments, result, schemas, has_get=method.has_get
        )
    paths["/v1/server.info"] = _path(
        "server.info", "Read the version, namespace and role.", a.NoArguments, None, schemas,
        has_get=True,
    )  # fmt: skip
    paths["/v1/queue.claim"] = _path(
        "queue.claim",
        "Lease due messages, and wait for some if there are none.",
        a.ClaimArguments,
        None,
        schemas,
        has_get=False,
    )
    paths["/v1/streams.read"] = _stream_path(schemas)
    for path, summary in (
        ("/livez", "Whether the process turns; never asks Redis."),
        ("/readyz", "Whether Redis answers and the namespaces are open."),
        ("/openapi.json", "This document."),
    ):
        paths[path] = {"get": _public(path, summary)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "redis-world",
            "version": __version__,
            "summary": "A World for durable workflows on Redis, over HTTP.",
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schema(model: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(
        ref_template=_REF, mode=mode, schema_generator=_Schemas
    )
    schemas.update(schema.pop("$defs", {}))
    return schema


def _path(
    name: str,
    summary: str,
    arguments: type[a.Arguments],
    result: dict[str, Any] | None,
    schemas: dict[str, Any],
    *,
    has_get: bool,
) -> dict[str, Any]:
    given = _schema(arguments, schemas, "validation")
    content = {media_type: {"schema": result or {}} for media_type in (JSON, CBOR)}
    responses = {"200": {"description": "done", "content": content}, **_refusals()}
    body = {
        "required": bool(given.get("required")),
        "content": {media_type: {"schema": given} for media_type in (JSON, CBOR)},
    }
    operations = {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": _headers(),
            "requestBody": body,
            "responses": responses,
        }
    }
    if has_get:
        operations["get"] = {
            "operationId": f"{name}.get",
            "summary": summary,
            "parameters": _query(given),
            "responses": responses,
        }
    return operations


def _stream_path(schemas: dict[str, Any]) -> dict[str, Any]:
    given = _schema(a.ReadArguments, schemas, "validation")
    content: dict[str, Any] = {
        "application/octet-stream": {"schema": {}},
        CBOR_SEQUENCE: {"schema": {}},
    }
    return {
        "get": {
            "operationId": "streams.read.get",
            "summary": "Read a stream live, until it is closed.",
            "parameters": _query(given),
            "responses": {"200": {"description": "chunks", "content": content}, **_refusals()},
        }
    }


def _refusals() -> dict[str, Any]:
    content = {
        media_type: {"schema": {"$ref": "#/components/schemas/Error"}}
        for media_type in (JSON, CBOR)
    }
    return {
        status: {"description": text, "content": content} for status, text in _REFUSALS.items()
    }


def _headers() -> list[dict[str, Any]]:
    return [
        {
            "name": "Request-Id",
            "in": "header",
            "required": False,
            "description": "A ULID. A request that is sent again with it happens once.",
            "schema": {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"},
        },
        {
            "name": "Request-Attempt",
            "in": "header",
            "required": False,
            "description": "Which try it is, from 1.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        },
    ]


def _query(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = given.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in given.get("properties", {}).items()
    ]


def _public(path: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": path.strip("/").partition(".")[0],
        "summary": summary,
        "security": [],
        "responses": {
            "200": {"description": "yes", "content": {JSON: {"schema": {}}}},
            **{status: each for status, each in _refusals().items() if status in ("405", "503")},
        },
    }
