"""What the documents point at is there, and the map of the code is whole."""

import re
from pathlib import Path

import pytest
from source_tree import ROOT, SourceTree, below

import pluto_edge.cli

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")])
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading: lower case, dashes for spaces, no other signs."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, part = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not part or part in anchors(file), target


def mapped() -> dict[str, set[str]]:
    """Folder to the names of files that the map of the code has of it."""
    code = CONTRIBUTING.partition("## Where things live")[2].partition("```\n")[2].partition("```")[0]
    found: dict[str, set[str]] = {}
    top = folder = ""
    for line in code.splitlines():
        if head := re.match(r"(\w+)/", line):
            top = folder = head[1]
        elif head := re.match(r"  (\w+)/", line):
            folder = f"{top}/{head[1]}"
        elif re.match(r"  \w", line):
            folder = top
        found.setdefault(folder, set()).update(re.findall(r"(?<![\w/])\w+\.(?:py|html)", line))
    return found


def test_every_file_is_on_the_map() -> None:
    """`cli` has a file for every subcommand, and those that the map names."""
    there: dict[str, set[str]] = {}
    pages = [page for folder in ("observe", "service") for page in (ROOT / folder).glob("*.html")]
    for file in [*SourceTree(ROOT).shipped, *below(ROOT / "benchmarks"), *pages]:
        if file.name not in ("__init__.py", "__main__.py"):
            there.setdefault(file.parent.relative_to(ROOT).as_posix(), set()).add(file.name)
    found = {folder: names for folder, names in mapped().items() if names and folder != "tests"}
    commands = {f"{command}.py" for command in pluto_edge.cli.COMMANDS}
    assert there.pop("pluto_edge/cli") == commands | found.pop("pluto_edge/cli")
    assert found == there, "the map is in CONTRIBUTING.md"


def test_files_to_touch_are_there() -> None:
    """The tables of CONTRIBUTING name files from the top, or beside the one before."""
    rows = re.findall(r"^\| (`[^|]*) \|", CONTRIBUTING, flags=re.M)
    assert len(rows) > 20
    for row in rows:
        folder = ROOT
        for name in re.findall(r"`([^`]+)`", row):
            file = ROOT / name if "/" in name or (ROOT / name).exists() else folder / name
            assert file.is_file(), name
            folder = file.parent
    for name in re.findall(r"`((?:tests|runtime|export|vit|train|evaluate)/[\w/]+\.py)`", CONTRIBUTING):
        assert (ROOT / name).is_file(), name
