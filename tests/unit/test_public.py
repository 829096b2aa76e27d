import subprocess
import sys
import textwrap

import pytest

import midepoch
from files import write_numbers


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
        assert value.__name__ == name
        assert value.__doc__
    assert set(midepoch.__all__) <= set(dir(midepoch))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'midepoch' has no attribute 'nothing'"):
        _ = midepoch.nothing


def test_a_star_import_gives_the_public_names():
    names = run("from midepoch import *; print(*[name for name in dir() if not name.startswith('__')])")
    assert names == sorted(midepoch.__all__)


def test_importing_midepoch_imports_nothing_heavy():
    loaded = run("import midepoch, sys; print(*sys.modules)")
    assert not {"torch", "datasets", "pyarrow", "numpy", "pandas"} & set(loaded)


def test_reading_rows_does_not_import_torch(path):
    code = """
        import sys
        import midepoch as me
        dataset = me.read(sys.argv[1]).shuffle(seed=1).map(lambda row: row).filter(lambda row: True).batch(2)
        assert len(list(dataset)) == 5
        dataset.load_state_dict(dataset.state_dict())
        list(me.read(sys.argv[1]).with_format("numpy").batch(2))
        isinstance(dataset, list)
        print(*sys.modules)
    """
    assert not {"torch", "datasets"} & set(run(code, path))


@pytest.mark.parametrize(
    "imports",
    [
        "import torch.utils.data; import midepoch as me; ds = me.read(sys.argv[1])",
        "import midepoch as me; import torch.utils.data; ds = me.read(sys.argv[1])",
        "import midepoch as me; ds = me.read(sys.argv[1]); import torch.utils.data",
        "import midepoch as me; ds = me.read(sys.argv[1]); isinstance(ds, int); import torch.utils.data",
    ],
)
def test_a_dataset_is_an_iterable_dataset_whichever_is_imported_first(path, imports):
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
{imports}
data = torch.utils.data
print(isinstance(ds, data.IterableDataset), isinstance(ds, me.Dataset), type(ds) is me.Dataset)
print(len(list(data.DataLoader(ds, batch_size=None))))
"""
    assert run(code, path) == ["True"] * 3 + ["10"]


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


def test_every_error_is_a_midepoch_error_and_what_callers_expect():
    builtins = {
        "CheckpointMismatchError": ValueError,
        "DataChangedError": RuntimeError,
        "DataFormatError": ValueError,
        "MissingExtraError": ImportError,
        "NoDataError": FileNotFoundError,
        "SchemaMismatchError": ValueError,
    }
    for name, builtin in builtins.items():
        assert issubclass(getattr(midepoch, name), builtin)
    for name in (name for name in midepoch.__all__ if name.endswith("Error")):
        assert issubclass(getattr(midepoch, name), midepoch.MidepochError)


def test_the_public_modules_need_no_import_of_their_own():
    assert callable(midepoch.testing.assert_resumes)
    assert callable(midepoch.distributed.gather_state)
