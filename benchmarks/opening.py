"""What a start costs: imports, and opening datasets with and without a cached index."""

import shutil
import tempfile
from functools import partial
from statistics import median

from benchmarks import data
from benchmarks.measure import Figure, at_most, figure, fresh, medians

READ = """
import sys, time, midepoch
midepoch.read
begun = time.perf_counter()
midepoch.read(sys.argv[1], index_dir=sys.argv[2])
print(1e3 * (time.perf_counter() - begun))
"""


def imports(repeats: int) -> list[Figure]:
    """Importing in a fresh process, against importing what it is built on."""
    codes = ("import pyarrow, numpy", "import midepoch", "import midepoch; midepoch.read")
    plain, bare, used = medians({code: partial(fresh, code) for code in codes}, repeats).values()
    return [
        at_most(1.3, "import midepoch / import pyarrow, numpy", bare / plain, "×"),
        figure("import midepoch; midepoch.read / import pyarrow, numpy", used / plain, "×"),
        figure("import pyarrow, numpy", 1e3 * plain, "ms"),
    ]


def opens(files: int, file_rows: int, tiny_files: int, repeats: int) -> list[Figure]:
    """Opening datasets in a fresh process, after the import."""
    many, tiny = data.many(files, file_rows), data.tiny(tiny_files)
    index = tempfile.mkdtemp()
    try:
        first = {folder: float(fresh(READ, folder, index)) for folder in (many, tiny)}
        again = median(float(fresh(READ, many, index)) for _ in range(repeats))
        return [
            at_most(50, f"opening {files} indexed files", again, "ms"),
            figure(f"indexing {files} files of {file_rows:,} rows", first[many], "ms"),
            figure(f"opening {tiny_files:,} indexed files", float(fresh(READ, tiny, index)), "ms"),
            figure(f"indexing {tiny_files:,} files", first[tiny], "ms"),
        ]
    finally:
        shutil.rmtree(index)
