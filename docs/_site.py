"""What the documentation site needs beside docs/: files of the repository that are pages, too, and links to them.

A link is written as it works in the repository. On the site a link to a page leads to the page, and one to anything
else that is in the repository (a script, a folder) is its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "examples/digits/README.md")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    name = page.file.src_uri
    here = posixpath.dirname(name if name in PAGES else f"docs/{name}")

    def turn(link: re.Match[str]) -> str:
        said, target, anchor = link[1], link[2], link[3] or ""
        at = posixpath.normpath(posixpath.join(here, target))
        place = at.removeprefix("docs/") if at.startswith("docs/") else at
        if files.get_file_from_path(place) is not None:
            return f"[{said}]({posixpath.relpath(place, posixpath.dirname(name) or '.')}{anchor})"
        return said if (ROOT / at).exists() else link[0]

    return LINK.sub(turn, text)
