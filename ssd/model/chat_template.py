"""Chat templates: programs that come with the weights and write a prompt from messages."""

import json
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .values import show


def checked_messages(messages: list[dict]) -> list[dict]:
    """The messages as templates expect them: null fields are left out, and a content is a text.

    Content that is null is empty; the texts of a list of parts are joined by line breaks. Raises ValueError.
    """
    if not isinstance(messages, (list, tuple)) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError(f"messages: got {show(messages)}, wanted a list of at least one {{'role', 'content'}}")
    checked = []
    for i, message in enumerate(messages):
        fields = {name: value for name, value in message.items() if value is not None}
        if "content" in message:
            fields["content"] = text_of(message["content"], f"messages[{i}]: content")
        if not isinstance(fields.get("role"), str):
            raise ValueError(f"messages[{i}]: role: got {show(message.get('role'))}, wanted a text")
        checked.append(fields)
    return checked


def text_of(value, name: str) -> str:
    if isinstance(value, list):
        for part in value:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str) or part.get("type") != "text":
                raise ValueError(f"{name}: got a part {show(part)}, wanted {{'type': 'text', 'text': ...}}")
        value = "\n".join(part["text"] for part in value)
    if not isinstance(value, (str, type(None))):
        raise ValueError(f"{name}: got {show(value)}, wanted a text")
    return value or ""


class GenerationBlock(Extension):
    """The tag {% generation %}, which marks the assistant's text for training; the text stays as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def chat_environment() -> ImmutableSandboxedEnvironment:
    """jinja2's sandbox with the usual helpers. Templates come with the weights and are not trusted."""

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment
