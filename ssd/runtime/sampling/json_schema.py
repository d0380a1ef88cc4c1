"""Whether a JSON schema has a finite answer, which a schema that requires itself below itself has not."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urljoin


def has_finite_answer(schema: dict | bool) -> bool:
    """The least fixed point: a reference has a finite answer once its target has one without it.

    What is not understood counts as finite, so a schema that is refused really has none.
    """
    nodes = list(_nodes(schema))
    names = {"#" + node["$anchor"]: node for node in nodes if isinstance(node.get("$anchor"), str)}
    names |= {node["$id"]: node for node in nodes if isinstance(node.get("$id"), str)}
    targets = {node["$ref"]: None for node in nodes if isinstance(node.get("$ref"), str)}
    targets = {ref: names.get(ref) or _pointed(schema, ref) for ref in targets}
    finite: set[str] = set()
    while new := {ref for ref in targets.keys() - finite if _ends(targets[ref], finite)}:
        finite |= new
    return _ends(schema, finite)


def _nodes(value) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(child)


def _pointed(schema, ref: str):
    """The target of a pointer such as #/$defs/a; True for another kind of reference."""
    base = schema.get("$id", "") if isinstance(schema, dict) else ""
    if isinstance(base, str) and base and urljoin(base, ref).startswith(base.partition("#")[0] + "#"):
        ref = "#" + urljoin(base, ref).partition("#")[2]
    if not ref.startswith("#"):
        return True
    for part in unquote(ref[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
            schema = schema[int(part)]
        else:
            schema = schema.get(part, True) if isinstance(schema, dict) else True
    return schema


def _ends(node, finite: set[str]) -> bool:
    if not isinstance(node, dict):
        return node is not False
    if "$ref" in node and node["$ref"] not in finite:
        return False
    if not all(_ends(part, finite) for part in node.get("allOf", ())):
        return False
    node = _merged(node)
    if any(node.get(name) and not any(_ends(part, finite) for part in node[name]) for name in ("anyOf", "oneOf")):
        return False
    kinds = node.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    shapes = {"object": _object_ends, "array": _array_ends}
    return "enum" in node or "const" in node or any(k not in shapes or shapes[k](node, finite) for k in kinds)


def _merged(node: dict) -> dict:
    """The schema with the type, the properties and the required names of all parts of its allOf."""
    parts = [node, *(_merged(part) for part in node.get("allOf", ()) if isinstance(part, dict))]
    named: dict[str, dict] = {}
    for part in parts:
        for name, schema in part.get("properties", {}).items():
            named[name] = {"allOf": [named[name], schema]} if name in named else schema
    required = [name for part in parts for name in part.get("required", ())]
    kinds = [part["type"] for part in parts if "type" in part]
    return node | {"properties": named, "required": required} | ({"type": kinds[0]} if kinds else {})


def _object_ends(node: dict, finite: set[str]) -> bool:
    named, patterns = node.get("properties", {}), node.get("patternProperties", {})
    rest = _ends(node.get("additionalProperties", True), finite)

    def ends(name: str) -> bool:
        parts = [named[name]] if name in named else []
        parts += [part for pattern, part in patterns.items() if _matches(pattern, name)]
        return all(_ends(part, finite) for part in parts) if parts else rest

    free = rest or any(_ends(part, finite) for part in patterns.values())
    enough = free or sum(_ends(part, finite) for part in named.values()) >= node.get("minProperties", 0)
    return enough and all(map(ends, node.get("required", ())))


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # another dialect
        return False


def _array_ends(node: dict, finite: set[str]) -> bool:
    first, rest, least = node.get("prefixItems", []), node.get("items", True), node.get("minItems", 0)
    if isinstance(rest, list):  # as in older drafts
        first, rest = rest, node.get("additionalItems", True)
    return all(_ends(part, finite) for part in [*first, rest][: int(least)])
