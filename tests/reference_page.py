"""What docs/reference.md shows: the names on the page, and which of their members it leaves out."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^::: midepoch\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)


def hidden_members():
    """The names that the reference leaves out, by the filters of mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.compile("|".join(f"(?:{pattern})" for pattern in re.findall(r'- "!(\^[^"]+)"', text)))


def reference_names():
    """The names on the page, without ``midepoch.``."""
    for name, options in SECTION.findall((ROOT / "docs" / "reference.md").read_text()):
        members = re.search(r"members: \[(.+)\]", options)
        yield from [f"{name}.{member}" for member in members[1].split(", ")] if members else [name]
