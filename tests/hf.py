"""What the tests of the Hugging Face front door share."""

import json
import subprocess
import sys
import textwrap

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from worlds import table


def write_parquet(folder, sizes, first=0):
    """Parquet files of numbered rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        pq.write_table(table(first, size), folder / f"part-{number}.parquet")
        first += size
    return folder


def numbered(rows, first=0):
    """A dataset in memory."""
    return datasets.Dataset(table(first, rows))


def rows_of(path):
    """The ids of an Arrow file."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()["id"].to_pylist()


def named(dataset, state):
    """The id of the example that a state names."""
    return rows_of(dataset.shuffled_files[state["current_file_index"]])[state["current_example_index"]]


def fresh(code, *arguments, strict=False):
    """What a new interpreter prints as JSON."""
    command = [sys.executable, *(["-W", "error"] if strict else []), "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
