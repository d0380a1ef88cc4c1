"""The layout of the code: which room may import which, how long a module is, and how a docstring begins.

Each check is a function of source text, so that planted violations show that it can fail.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The rooms of ssd/runtime from top to bottom. A room imports rooms on lower floors only, so two rooms on one floor do
# not know each other.
FLOORS = (
    ("llm",),
    ("requests", "stream"),
    ("turns",),
    ("factory",),
    ("switching",),
    ("sync", "lanes"),
    ("drafting",),
    ("engine",),
    ("sampling", "devices"),
)
# Modules at the root of ssd/runtime that every room may import, and the rooms that each of them may import.
PLAIN = {
    "options": {"sampling", "devices"},
    "output": set(),
    "moving_average": {"sampling", "devices"},
    "cache_files": {"sampling", "devices"},
}

BASE = ("shared_options", "text_files")  # modules of ssd that import none of its packages
# Packages of ssd, and the packages that each of them may import beside itself.
PACKAGES = {
    "kernels": set(),
    "model": {"kernels", "drafts", *BASE},
    "runtime": {"model", "kernels", "drafts", *BASE},
}

MAX_LINES = 300
LONGER: dict[str, int] = {}  # by path: lines, and why

FOREIGN_START = re.compile(r"(Of|As|By|Their|Its|Those|These|It)\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(source: str, module: str, is_package: bool = False) -> list[tuple[int, str]]:
    """Line and dotted name of every import in a module, relative ones resolved; `from a import b` is "a.b"."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) + is_package - node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            found += [(node.lineno, ".".join([*base, alias.name])) for alias in node.names]
    return found


def rooms_below(room: str) -> set[str]:
    """The rooms that a room of ssd/runtime may import, itself included."""
    if room in PLAIN:
        return {room, *PLAIN[room]}
    floor = next((i for i, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))
    return {room, *PLAIN, *(below for rooms in FLOORS[floor + 1 :] for below in rooms)}


def upward_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of a module of ssd.runtime that do not lead down to a lower floor."""
    room = module.split(".")[2]
    if room not in PLAIN and not any(room in rooms for rooms in FLOORS):
        return [f"{module}: {room} is on no floor of ssd/runtime; give it one in FLOORS"]
    return [
        f"{module} line {line}: imports {name}, but {room} may import only {', '.join(sorted(rooms_below(room)))}"
        for line, name in imported_names(source, module, is_package)
        if (name + ".").startswith("ssd.runtime.") and (name.split(".") + [""])[2] not in rooms_below(room)
    ]


def foreign_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of a module of kernels, model or runtime that lead out of the packages below it."""
    package = module.split(".")[1]
    allowed = {package, *PACKAGES[package]}
    return [
        f"{module} line {line}: imports {name}, but ssd.{package} may import only {', '.join(sorted(allowed))} of ssd"
        for line, name in imported_names(source, module, is_package)
        if name.split(".")[0] == "ssd" and (name.split(".") + [""])[1] not in allowed
    ]


def imported_tests(source: str, module: str) -> list[str]:
    return [
        f"{module} line {line}: imports {name}; move what both need to tests/helpers"
        for line, name in imported_names(source, module)
        if any(part.startswith("test_") for part in name.split("."))
    ]


def too_long(source: str, path: str) -> list[str]:
    lines, most = len(source.splitlines()), LONGER.get(path, MAX_LINES)
    return [f"{path}: has {lines} lines, wanted at most {most}"] if lines > most else []


def foreign_docstrings(source: str, path: str) -> list[str]:
    """The docstrings that begin with a word no English sentence about the thing itself begins with."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if FOREIGN_START.match(text := ast.get_docstring(node) or ""):
                found.append(f"{path} line {node.body[0].lineno}: {text.splitlines()[0]}")
    return found


def listed(faults: list[str]) -> str:
    return "\n" + "\n".join(faults)


def test_imports_of_the_runtime_run_down():
    paths = [path for path in python_files("ssd/runtime") if path != ROOT / "ssd/runtime/__init__.py"]
    faults = [f for p in paths for f in upward_imports(p.read_text(), module_of(p), p.name == "__init__.py")]
    assert not faults, listed(faults)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_those_below(package):
    paths = python_files(f"ssd/{package}")
    faults = [f for p in paths for f in foreign_imports(p.read_text(), module_of(p), p.name == "__init__.py")]
    assert paths and not faults, listed(faults)


@pytest.mark.parametrize("module", BASE)
def test_the_base_imports_no_package(module):
    imports = imported_names((ROOT / f"ssd/{module}.py").read_text(), f"ssd.{module}")
    assert imports and not [name for _, name in imports if name.split(".")[0] == "ssd"]


def test_no_test_imports_a_test():
    faults = [fault for path in python_files("tests") for fault in imported_tests(path.read_text(), module_of(path))]
    assert not faults, listed(faults)


def test_modules_are_short():
    faults = [fault for p in python_files("ssd") for fault in too_long(p.read_text(), str(p.relative_to(ROOT)))]
    assert not faults, listed(faults)


def test_docstrings_say_what_the_thing_is():
    paths = python_files("ssd", "bench")
    faults = [fault for p in paths for fault in foreign_docstrings(p.read_text(), str(p.relative_to(ROOT)))]
    assert not faults, listed(faults)


@pytest.mark.parametrize(
    "module, source, fault",
    [
        ("ssd.runtime.lanes.forest", "from ..switching.auto import AutoMode", "ssd.runtime.switching.auto.AutoMode"),
        ("ssd.runtime.lanes.forest", "from ..sync import policy", "ssd.runtime.sync.policy"),
        ("ssd.runtime.sync.policy", "import ssd.runtime.lanes.forest as f", "ssd.runtime.lanes.forest"),
        ("ssd.runtime.devices.threads", "def f():\n    from ssd.runtime.sampling import seeds", "line 2"),
        ("ssd.runtime.engine.engine", "from .. import factory", "ssd.runtime.factory"),
        ("ssd.runtime.engine.engine", "from ssd.runtime import LLM", "ssd.runtime.LLM"),
        ("ssd.runtime.engine.engine", "import ssd.runtime", "imports ssd.runtime,"),
        ("ssd.runtime.options", "from .sync.policy import Policy", "ssd.runtime.sync.policy.Policy"),
        ("ssd.runtime.output", "from .sampling import seeds", "ssd.runtime.sampling.seeds"),
        ("ssd.runtime.attic", "", "attic is on no floor"),
        ("ssd.runtime.llm", "from .engine.engine import Engine\nfrom .options import EngineOptions", None),
        ("ssd.runtime.lanes.forest", "from .fan_out import RANKS\nfrom ..drafting import ngram\nimport numpy", None),
        ("ssd.runtime.devices.threads", "from ..options import EngineOptions\nfrom ssd.kernels import library", None),
    ],
)
def test_an_upward_import_is_named(module, source, fault):
    faults = upward_imports(source, module)
    assert [fault in f for f in faults] == ([True] if fault else [])


def test_a_relative_import_in_a_package_starts_at_the_package():
    source = "from .a import b\nfrom ..c import d"
    assert imported_names(source, "x.y", is_package=True) == [(1, "x.y.a.b"), (2, "x.c.d")]
    assert imported_names(source, "x.y.z") == [(1, "x.y.a.b"), (2, "x.c.d")]


@pytest.mark.parametrize(
    "module, source, fault",
    [
        ("ssd.kernels.norm.triton", "from ssd.model import memory", "ssd.model.memory"),
        ("ssd.model.llama", "from ..runtime.engine import tree", "ssd.runtime.engine.tree"),
        ("ssd.runtime.llm", "from ssd.cli.command import threads", "ssd.cli.command.threads"),
        ("ssd.kernels.library", "import ssd", "imports ssd,"),
        ("ssd.runtime.llm", "from ssd import kernels\nfrom ssd.drafts import default_draft\nimport torch", None),
    ],
)
def test_an_import_from_above_is_named(module, source, fault):
    faults = foreign_imports(source, module)
    assert [fault in f for f in faults] == ([True] if fault else [])


def test_a_test_that_imports_a_test_is_named():
    assert imported_tests("from test_engine import PROMPTS", "tests.a")
    assert imported_tests("from tests.runtime.test_engine import PROMPTS", "tests.a")
    assert imported_tests("from . import test_engine", "tests.a")
    assert not imported_tests("from run_helpers import call\nimport pytest", "tests.a")


def test_a_long_module_is_named():
    assert too_long("x\n" * 301, "ssd/a.py") == ["ssd/a.py: has 301 lines, wanted at most 300"]
    assert not too_long("x\n" * 300, "ssd/a.py")
    for path, lines in LONGER.items():
        assert len((ROOT / path).read_text().splitlines()) > MAX_LINES and too_long("x\n" * (lines + 1), path)


@pytest.mark.parametrize("start", ["Of each row", "As text", "By name", "Their tokens", "Its loss", "It in bf16."])
def test_a_foreign_docstring_is_named(start):
    doc = f'"""{start}"""'
    for source in (doc, f"class A:\n    {doc}", f"class A:\n    async def f():\n        {doc}"):
        (fault,) = foreign_docstrings(source, "a.py")
        assert start in fault
    assert not foreign_docstrings('"""Ascending order; Iterates."""\ndef f():\n    x = "Of all"\n', "a.py")
