"""The site of the docs has every page and every public name. `make docs` checks its links."""

import ast
import re
from pathlib import Path

import yaml

import midepoch

ROOT = Path(__file__).parents[2]


def nav_pages(entry):
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for child in (entry if isinstance(entry, list) else entry.values()) for page in nav_pages(child)]


def pages_from_outside():
    """The table of site_hooks.py, without importing it: mkdocs is not needed for tests."""
    tree = ast.parse((ROOT / "docs" / "site_hooks.py").read_text())
    (table,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "OUTSIDE")
    return ast.literal_eval(table)


def test_the_navigation_has_every_page_once():
    navigation = nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    outside = pages_from_outside()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(navigation) == sorted([*pages, *outside.values()])
    assert all((ROOT / home).exists() for home in outside)


def test_the_reference_has_every_public_name_once():
    names = re.findall(r"^::: midepoch\.(\w+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    assert sorted(set(names) - {"distributed", "testing"}) == midepoch.__all__
    assert len(names) == len(set(names))
