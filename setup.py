"""The description that package indexes show: the README, whose links become absolute. All else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
LINK = re.compile(r"(!?)(\[[^\[\]]*\])\((?!https?://|#)([^()\s]+)\)")


def absolute(link: re.Match[str]) -> str:
    """A link into the repository as one to its pages, or, for an image, to the file."""
    image, text, target = link.groups()
    return f"{image}{text}({SOURCE}/{'raw' if image else 'blob'}/HEAD/{target})"


setup(
    long_description=LINK.sub(absolute, (ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
