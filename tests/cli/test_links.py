"""Whatever README, docs and the drafts' cards point at is there: links, anchors, paths of the repository, commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "ssd/drafts").glob("*/CARD.md"))]
FOLDERS = "ssd|csrc|bench|docs|tests|examples"


def text_of(page: Path) -> str:
    """A page with each paragraph on one line, without blocks of code."""
    return re.sub(r"(?<!\n)\n(?![\n|#*-])", " ", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def module_exists(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_at_is_there(page):
    text, missing = text_of(page), []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or anchor and anchor not in anchors(target):
            missing.append(link)
    for path in re.findall(rf"`((?:{FOLDERS})/[\w./*-]+)`", text):
        if not list(ROOT.glob(path.rstrip("/"))):
            missing.append(path)
    commands = re.findall(r"python -m ((?:ssd|bench|examples)[\w.]*)", page.read_text())
    missing += [name for name in commands if not module_exists(name.rstrip("."))]
    assert not missing
