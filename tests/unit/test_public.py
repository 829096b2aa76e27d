import ast
import builtins
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import midepoch
from files import write_numbers
from midepoch import errors, extending

ROOT = Path(__file__).parents[2]


def run(code, *arguments):
    """What a new interpreter prints; it must end well and without a warning."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def path(tmp_path):
    return write_numbers(tmp_path / "a.arrow", 0, 10)


def test_the_public_names_are_sorted_and_there():
    assert midepoch.__all__ == sorted(midepoch.__all__)
    for name in midepoch.__all__:
        value = getattr(midepoch, name)
        assert value.__name__ == {"load_dataset": "fast_load_iterable_dataset"}.get(name, name)
        assert value.__doc__


def test_importing_midepoch_imports_nothing_heavy_and_dir_and_star_have_exactly_the_public_names():
    code = """
        import sys
        import midepoch
        print(not {"torch", "datasets", "pyarrow", "numpy", "pandas"} & set(sys.modules))
        first = dir(midepoch)
        midepoch.read
        print(first == dir(midepoch) == midepoch.__all__)
        before = {*dir()}
        from midepoch import *
        print({*dir()} - before - {"before"} == {*first} - before)
    """
    assert run(code) == ["True"] * 3


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'midepoch' has no attribute 'nothing'"):
        _ = midepoch.nothing


def test_without_torch_all_public_names_that_do_not_need_it_can_be_listed():
    code = """
        import sys
        sys.modules["torch"] = None
        import inspect, pydoc
        import midepoch
        from midepoch import *
        assert [name for name, _ in inspect.getmembers(midepoch)] == midepoch.__all__
        assert "class Dataset" in pydoc.plain(pydoc.render_doc(midepoch))
        print(*midepoch.__all__)
    """
    assert {*midepoch.__all__} - {*run(code)} == {"Loader"}


def test_type_checkers_see_only_the_names_that_exist():
    tree = ast.parse(Path(midepoch.__file__).read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert "__getattr__" not in functions, "for type checkers every name of the module would exist"
    (seen,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {name.asname or name.name for node in seen.body for name in getattr(node, "names", ())}
    assert imported == {*midepoch.__all__, "distributed", "extending", "testing"}


def test_indexed_files_are_opened_read_and_resumed_without_heavy_imports(path):
    midepoch.read(path)
    code = """
        import sys
        import numpy
        has_masked = "numpy.ma" in sys.modules  # NumPy imports it at first use since release 2
        import midepoch as me
        rows = me.read(sys.argv[1])
        next(iter(rows))
        print([name for name in ("pandas", "pyarrow.compute") if name in sys.modules])
        next(iter(rows.shuffle(seed=1, level="row").with_format("numpy").batch(2)))
        next(iter(me.mix([rows.shuffle(seed=1), rows]).batch(2)))
        print("pandas" in sys.modules, "numpy.ma" in sys.modules and not has_masked)
        dataset = rows.shuffle(seed=1).map(lambda row: row).filter(lambda row: True).batch(2)
        assert len(list(dataset)) == 5
        dataset.load_state_dict(dataset.state_dict())
        isinstance(dataset, list)
        print([name for name in ("torch", "datasets") if name in sys.modules])
    """
    assert run(code, path) == ["[]", "False", "False", "[]"]


@pytest.mark.parametrize(
    "imports",
    [
        "import torch.utils.data; import midepoch as me; ds = Own(me.read(sys.argv[1]))",
        "import midepoch as me; ds = Own(me.read(sys.argv[1])); isinstance(ds, int); import torch.utils.data",
    ],
)
def test_a_dataset_is_an_iterable_dataset_whichever_is_imported_first(path, imports):
    """So are subclasses and copies."""
    code = f"""
import copy, pickle, sys, warnings
warnings.simplefilter("ignore")
def Own(dataset):
    global Own
    class Own(me.Dataset):
        pass
    return Own(me.extending.plan_of(dataset))
{imports}
data = torch.utils.data
rows = me.read(sys.argv[1])
print(all(isinstance(one, data.IterableDataset) for one in (rows, ds, copy.copy(ds), pickle.loads(pickle.dumps(ds)))))
print(isinstance(ds, me.Dataset), type(rows) is me.Dataset, type(ds) is ds.__class__ is Own)
print(issubclass(me.Dataset, data.IterableDataset))
print(len(list(data.DataLoader(ds, batch_size=None))))
"""
    assert run(code, path) == ["True"] * 5 + ["10"]


def test_the_class_of_a_dataset_cannot_be_set(path):
    with pytest.raises(TypeError, match="class cannot be changed"):
        midepoch.read(path).__class__ = int


def test_without_torch_rows_are_read_and_the_form_torch_names_the_extra(path):
    code = """
        import sys
        sys.modules["torch"] = None
        import midepoch as me
        dataset = me.read(sys.argv[1])
        print(len(list(dataset)))
        try:
            dataset.with_format("torch")
        except me.MissingExtraError as error:
            assert isinstance(error, ImportError)
            print(error)
    """
    words = run(code, path)
    assert words[0] == "10"
    assert "'midepoch[torch]'" in words


def test_the_exceptions_are_those_of_the_tree_in_the_docstring():
    lines = errors.__doc__.splitlines()
    root, *lines = [line for line in lines if re.match(r" +(├──|└──|MidepochError)", line)]
    assert root.split() == ["MidepochError", "(Exception)"]
    tree = dict(re.match(r" +[├└]── (\w+) \((\w+)\)  ", line).groups() for line in lines)
    assert {"MidepochError", *tree} == {name for name in midepoch.__all__ if name.endswith("Error")}
    for name, builtin in tree.items():
        assert getattr(midepoch, name).__bases__ == (midepoch.MidepochError, getattr(builtins, builtin))


def test_the_public_modules_need_no_import_of_their_own():
    assert callable(midepoch.testing.assert_resumes)
    assert callable(midepoch.distributed.gather_state)
    assert callable(midepoch.extending.open_index)


def test_the_names_for_extensions_are_documented():
    page = (ROOT / "docs" / "extending.md").read_text()
    names = re.findall(r" import (\w+) as \1$", Path(extending.__file__).read_text(), re.MULTILINE)
    assert {"Stage", "open_index", "with_plan"} < {*names}
    for name in ["FrontDoor", *names]:
        assert getattr(extending, name).__doc__
        assert re.search(rf"`{name}\b", page), f"docs/extending.md does not name {name}"
    for name, member in re.findall(r"`(FrontDoor|Loader)\.(\w+)", page):
        assert getattr(getattr(extending, name, None) or getattr(midepoch, name), member).__doc__


INTEGRATIONS = sorted((ROOT / "src" / "midepoch" / "integrations").glob("*.py"))
FOREIGN = {("huggingface.py", "_indices")}
"""Private names of other libraries, which have no public ones."""


def is_private(name):
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def own_names(tree):
    """The names that a module defines itself: functions, classes, variables, and attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def private_uses(tree, own):
    """The private names that a module takes from others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("midepoch"):
            parts = [part for part in node.module.split(".") if part != "_common"]
            names = [*parts, *(alias.name for alias in node.names)]
            yield from ((node.lineno, name) for name in names if is_private(name))


def test_front_doors_use_nothing_private():
    trees = {path: ast.parse(path.read_text()) for path in INTEGRATIONS}
    own = {name for tree in trees.values() for name in own_names(tree)}
    uses = [
        (path.relative_to(INTEGRATIONS[0].parent).as_posix(), line, name)
        for path, tree in trees.items()
        for line, name in private_uses(tree, own)
    ]
    assert [use for use in uses if (use[0], use[2]) not in FOREIGN] == []
    assert len(INTEGRATIONS) > 12
