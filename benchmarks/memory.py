"""How much memory an epoch takes: a billion permuted positions, and row groups that must not pile up."""

from benchmarks import data
from benchmarks.measure import Figure, figure, fresh

PEAK = """
import sys, threading, time
def megabytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024
def watch(seen):
    while True:
        seen[0] = max(seen[0], megabytes("RssAnon"))
        time.sleep(0.002)
seen = [0.0]
threading.Thread(target=watch, args=(seen,), daemon=True).start()
import numpy, midepoch
midepoch.read
{work}
time.sleep(0.01)
print(seen[0], megabytes("VmHWM"))
"""

POSITIONS = """
from midepoch.order.orders import Sequential, ShuffledRows
bounds = numpy.array([0, int(sys.argv[1])])
order = ShuffledRows(Sequential(bounds, bounds), 1)
for first in range(0, int(sys.argv[2]), 8192):
    order.rows(numpy.arange(first, first + 8192))
"""

READ_ROWS = """
from itertools import islice
for row in islice(midepoch.read(sys.argv[1], index_dir=sys.argv[2]).shuffle(1, level="row"), int(sys.argv[3])):
    pass
"""

READ_ALL = """
dataset = midepoch.read(sys.argv[1], index_dir=sys.argv[2])
for row in (dataset.shuffle(1) if sys.argv[3] == "block" else dataset):
    pass
"""

PLAIN = """
import pathlib, pyarrow.parquet
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.parquet")):
    file = pyarrow.parquet.ParquetFile(path)
    for number in range(file.num_row_groups):
        for row in file.read_row_group(number).to_pylist():
            pass
"""


def positions(many: tuple[int, int], count: int, read: int) -> list[Figure]:
    """A row-level shuffle of a billion positions, without an array of that size."""
    files, file_rows = many
    plain, _ = _peak("")
    permuted, _ = _peak(POSITIONS, count, read)
    rows, mapped = _peak(READ_ROWS, data.many(files, file_rows), data.INDEX, read // 10)
    return [
        figure("imports alone: peak anonymous memory", plain, "MB"),
        figure(f"{read:,} of {count:,} permuted positions: more than that", permuted - plain, "MB"),
        figure(f"{read // 10:,} rows of {files * file_rows:,}, shuffle (row): more than that", rows - plain, "MB"),
        figure("the same, with the files' mapped pages: peak RSS", mapped, "MB"),
    ]


def row_groups(groups: int) -> list[Figure]:
    """A full pass over Parquet, in row groups of about 50 MB decoded."""
    folder = data.parquet(groups)
    plain, plain_mapped = _peak("")
    figures = []
    passes = {
        "plain read_row_group loop": (PLAIN, folder),
        "sequential": (READ_ALL, folder, data.INDEX, "sequential"),
        "shuffle (block)": (READ_ALL, folder, data.INDEX, "block"),
    }
    for order, work in passes.items():
        peak, mapped = _peak(*work)
        for name, more in (("anonymous memory", peak - plain), ("RSS, mapped pages too", mapped - plain_mapped)):
            figures.append(
                figure(f"{groups} row groups, {order}: {name}", more * 2**20 / data.GROUP_BYTES, "row groups")
            )
    return figures


def _peak(work: str, *arguments: object) -> tuple[float, float]:
    """Peak anonymous memory and peak RSS, in MB, of a fresh process that imports and does some work.

    VmHWM and not ru_maxrss, which a child process takes over from its parent.
    """
    anonymous, rss = map(float, fresh(PEAK.replace("{work}", work), *arguments).split())
    return anonymous, rss
