"""docs/options.md and the parser name the same options."""

import re
from dataclasses import fields
from pathlib import Path

from ssd import SamplingParams
from ssd.run import parser
from ssd.runtime.options import EngineOptions, SpeculationOptions

PAGE = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
ACTIONS = [action for action in parser()._actions if action.option_strings]
ROWS = re.findall(r"^\| `([^`]+)`[^|]*\|", PAGE, re.MULTILINE)  # what stands first in a row of a table


def test_every_option_has_one_row():
    for action in ACTIONS:
        name = action.option_strings[-1]
        assert ROWS.count(name) == 1, f"{name}: stands in {ROWS.count(name)} rows of docs/options.md"


def test_every_option_that_the_page_names_exists():
    known = {text for action in ACTIONS for text in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", PAGE.replace("python -m", ""))) <= known


def test_defaults_are_those_of_the_parser():
    cells = dict(re.findall(r"^\| `(-[^`]+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    for action in ACTIONS:
        if action.default not in (None, False, True, [], "==SUPPRESS=="):
            default = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
            cell = cells[action.option_strings[-1]].replace("`", "")
            assert re.match(rf"{re.escape(default)}\b", cell), f"{action.option_strings[-1]}: {cell!r}, not {default}"


def test_every_field_that_python_takes_is_on_the_page():
    named = {name.removeprefix("--").removeprefix("-").replace("-", "_") for name in ROWS}
    named |= set(re.findall(r"`(\w+)", PAGE))
    for kind in (EngineOptions, SpeculationOptions, SamplingParams):
        assert {field.name for field in fields(kind)} <= named
