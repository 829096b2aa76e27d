"""A script that ends in the middle of an epoch ends quietly: nothing is printed while the interpreter shuts down."""

import subprocess
import sys

import pytest

from worlds import write_files

SCRIPT = """
import sys
import midepoch as me

def is_kept(row):
    return row["id"] % 3 != 0

dataset = me.read(sys.argv[1]).shuffle(seed=1)
packs = dataset.pack(16, column="tokens")
kinds = [dataset, dataset.filter(is_kept), dataset.batch(4), packs]
if sys.argv[2] == "rows":
    kinds += [me.mix([dataset, dataset]), me.concat([dataset, dataset]), me.mix([packs, packs], stop="never")]
else:
    kinds += [me.Loader(dataset, batch_size=4), me.Loader(dataset.filter(is_kept)), me.Loader(packs, batch_size=2)]
iterators = [iter(kind) for kind in kinds]
for iterator in iterators:
    next(iterator)
cycle = [iterators]
cycle.append(cycle)
last = iter(kinds[0])
next(last)
print("done")
"""


TENSORS = """
import sys
import midepoch as me

loader = me.Loader(me.read(sys.argv[1]), batch_size=4)
batches = iter(loader)
next(batches)
print("done")
"""


@pytest.mark.parametrize("kinds", ["rows", "loaders", "tensors"])
def test_iterators_that_are_alive_at_the_end_print_nothing(tmp_path, kinds):
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["parquet"])
    script = tmp_path / "script.py"
    script.write_text(TENSORS if kinds == "tensors" else SCRIPT)
    ended = subprocess.run([sys.executable, script, folder, kinds], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "Exception ignored" not in ended.stderr
    assert "Traceback" not in ended.stderr
