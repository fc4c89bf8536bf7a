"""The API's description for machines (OpenAPI 3.1), made from the table of endpoints."""

from functools import cache
from typing import Any

import msgspec

from spotlightd import __version__
from spotlightd.control import api
from spotlightd.control.endpoints import ENDPOINTS, Endpoint, Param

REFUSALS = {
    400: "The request is wrong: what was read, what was expected.",
    403: "This user may not do that.",
    404: "No such thing.",
    409: "A passing condition: try again.",
    413: "The body is too large.",
    422: "The configuration, or a file that it names, is not what it must be.",
    500: "A failure of the daemon; its log says more.",
    503: "Not now.",
}


@cache
def describe() -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = [e.answer for e in ENDPOINTS if e.answer is not None]
    types += [e.ask for e in ENDPOINTS if e.ask is not None] + [api.Failure]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, by_type)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Spotlight control API",
            "version": __version__,
            "description": "HTTP with JSON on the control socket; reading, on the dashboard's port",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.media: {"schema": _schema(endpoint, by_type)}}
    failure = {"application/json": {"schema": by_type[repr(api.Failure)]}}
    responses: dict[str, Any] = {
        str(endpoint.status): {"description": endpoint.help, "content": content}
    }
    for status, meaning in REFUSALS.items():
        if endpoint.handler == "readyz" and status == 503:
            responses["503"] = {"description": "Not yet.", "content": content}
        else:
            responses[str(status)] = {"description": meaning, "content": failure}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler,
        "summary": endpoint.help,
        "parameters": [_path_parameter(name) for name in endpoint.names]
        + [_parameter(param) for param in endpoint.params],
        "responses": responses,
    }
    if endpoint.ask is not None:
        schema = by_type[repr(endpoint.ask)]
        body = {"required": False, "content": {"application/json": {"schema": schema}}}
        operation["requestBody"] = body
    return operation


def _schema(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    if endpoint.answer is not None:
        return dict(by_type[repr(endpoint.answer)])
    is_text = endpoint.media.startswith("text/")
    return {"type": "string"} if is_text else {"type": "string", "format": "binary"}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(param: Param) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": param.kind}
    if param.choices:
        schema["enum"] = list(param.choices)
    elif param.kind == "string":
        schema |= {"minLength": param.low, "maxLength": param.high}
    else:
        schema |= {"minimum": param.low, "maximum": param.high}
    if param.default is not None:
        schema["default"] = param.default
    return {
        "name": param.name,
        "in": "query",
        "required": False,
        "description": param.help,
        "schema": schema,
    }
