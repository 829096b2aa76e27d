"""What `mkdocs build` does to these pages: files outside of `docs` become pages, and links between all of them work.

The pages are written to be read in the repository. There a link to `../benchmarks/README.md` is right; on the site it
is not.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
HOMES = {page: Path(home) for home, page in OUTSIDE.items()}
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?://|#)([^()#\s]+)(#[^()\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file outside of `docs` that the site has."""
    for home, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / home).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site. A link to a file that is no page, such as an example, becomes its text."""
    here = page.file.src_uri
    home = HOMES.get(here, Path("docs") / here)

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
        path = Path(os.path.normpath(home.parent / target)).as_posix()
        if not (ROOT / path).exists():
            return link.group()
        page_there = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page_there is None:
            return text
        return f"[{text}]({os.path.relpath(page_there, Path(here).parent)}{anchor})"

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Docstrings mark names as :attr:`name`, which Markdown does not know: keep the name."""
    if page.file.src_uri != "reference.md":
        return html
    return re.sub(r":(?:attr|class|func|meth|mod):(?=<code>)", "", html)
