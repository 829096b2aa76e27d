"""What is released: a wheel and a source archive with everything in them, and workflows that can run."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import midepoch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and a source archive, built from a copy of the project."""
    source, out = tmp_path_factory.mktemp("source") / "midepoch", tmp_path_factory.mktemp("dist")
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".git", ".[!g]*", "build", "dist", "data", "*.egg-info", "__pycache__"),
    )
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_the_description_is_one_that_package_indexes_show(built):
    files = [str(file) for file in built.iterdir()]
    assert len(files) == 2
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_of_the_description_lead_to_files_of_the_repository(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"midepoch-{midepoch.__version__}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert {"Source", "Documentation", "Changelog", "Issues"} == urls.keys()
    links = re.findall(r"(!?)\[[^\[\]]*\]\(([^()\s]+)\)", metadata.get_payload())
    inside = [(image, link.removeprefix(urls["Source"])) for image, link in links if link.startswith(urls["Source"])]
    assert len(inside) > 20
    for image, link in inside:
        path = link.removeprefix("/raw/HEAD/" if image else "/blob/HEAD/").partition("#")[0]
        assert (ROOT / path).is_file(), link
    assert all(link.startswith(("https://", "#")) for _, link in links)


def test_the_wheel_has_the_package_with_its_types_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"midepoch-{midepoch.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {"midepoch/__init__.py", "midepoch/py.typed", "fast_hf_loader_simple.py"} <= {*names}
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"midepoch", "fast_hf_loader_simple.py", f"midepoch-{midepoch.__version__}.dist-info"}
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_the_source_archive_has_tests_docs_and_changes(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"CHANGELOG.md", "SECURITY.md", "Makefile", "constraints.txt", "tests/conftest.py"} <= names
    assert {".github/workflows/tests.yml"} <= names, "for the tests of it"
    assert {"docs/how-it-works.md", "examples/demo/run.py", "benchmarks/README.md", "mkdocs.yml"} <= names


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_has_jobs_whose_steps_do_something(path):
    workflow = yaml.safe_load(path.read_text())
    assert {"name", "jobs", "permissions", True} <= workflow.keys()  # YAML reads the word on as true
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all(len({"run", "uses"} & step.keys()) == 1 for step in job["steps"])


def test_workflows_are_what_their_schema_says():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    workflows = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    done = subprocess.run([*command, *workflows], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_for_contributors_names_paths_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|docs|tests|benchmarks)/[^`]*|constraints\.txt)`", page)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    commands = re.findall(r"`make ([\w-]+)`", page)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"check", "test"} <= {*commands} <= {*targets}


def test_the_oldest_versions_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = dict(re.findall(r"^(\w+)>=([\d.]+)$", "\n".join([*project["dependencies"], "torch>=2.3"]), re.MULTILINE))
    assert project["optional-dependencies"]["torch"] == ["torch>=2.3"]
    supported = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert supported == {**oldest, "Python": project["requires-python"].removeprefix(">=")}
    words = (ROOT / "README.md").read_text()
    assert f"pyarrow {oldest['pyarrow']}, numpy {oldest['numpy']}, torch {oldest['torch']} or newer" in words
    makefile = (ROOT / "Makefile").read_text()
    assert all(
        f"'{name}=={version}.0'" in makefile or f"'{name}=={version}.0.0'" in makefile
        for name, version in oldest.items()
    )
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert "make test-floor" in workflow
    assert "make test-pythons" in workflow
