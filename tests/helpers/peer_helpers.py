"""What the tests of other systems' adapters share."""

import sys
from types import ModuleType

from bench.peers import SYSTEMS

PROMPT = list(range(5, 45)) + list(range(5, 25))  # repeats itself, for prompt lookup


def fake_module(monkeypatch, name, **contents):
    fake = ModuleType(name)
    vars(fake).update(contents)
    monkeypatch.setitem(sys.modules, name, fake)


def make(system, *args, **options):
    name, cls = SYSTEMS[system].factory.split(":")
    return getattr(__import__(name, fromlist=[cls]), cls)(*args, **options)
