"""Opening an indexed dataset and reading its first row imports nothing heavy, also where that is installed."""

import subprocess
import sys

import midepoch as me
from worlds import write_files

OPEN = """
import sys, midepoch
dataset = midepoch.read(sys.argv[1])
next(iter(dataset))
print([name for name in ("pandas", "torch", "datasets", "pyarrow.compute") if name in sys.modules])
next(iter(dataset.shuffle(1)))
print([name for name in ("pandas", "torch", "datasets") if name in sys.modules])
"""


def test_opening_imports_neither_pandas_nor_torch(tmp_path):
    folder = write_files(tmp_path / "data", [5, 7])
    me.read(folder)
    done = subprocess.run([sys.executable, "-c", OPEN, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
