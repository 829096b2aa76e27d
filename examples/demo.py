"""Kill a reader in the middle of an epoch, resume with three others, and prove that every row came once, in order.

make demo
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import chain, zip_longest
from pathlib import Path

import pyarrow as pa

import midepoch as me

FILES, ROWS, BLOCK = 8, 2_500, 100


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data")
        print(f"wrote    {FILES} Arrow files with {FILES * ROWS:,} rows")
        expected = [row["id"] for row in dataset(folder)]

        first = start(folder, "first", rank=0, ranks=1, pause="0.0001")
        while len(checkpoint(folder, "first")["ids"]) < len(expected) // 2:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        saved = checkpoint(folder, "first")
        print(f"killed   process {first.pid} with SIGKILL; its last checkpoint is after row {len(saved['ids']):,}")
        print(f"state    {len(json.dumps(saved['state'])):,} bytes: turn {saved['state']['turn']:,}, no paths, no rank")

        (folder / "resume.json").write_text(json.dumps(saved["state"]))
        others = [start(folder, f"rank{rank}", rank=rank, ranks=3, state=folder / "resume.json") for rank in range(3)]
        for process in others:
            process.wait()
        parts = [checkpoint(folder, f"rank{rank}")["ids"] for rank in range(3)]
        print(f"resumed  as 3 processes, which read {' + '.join(f'{len(part):,}' for part in parts)} rows")

        together = [row for row in chain.from_iterable(zip_longest(*parts)) if row is not None]
        got = saved["ids"] + together
        print(
            f"proof    {len(got):,} rows in all, {len(got) - len(set(got))} twice, {len(set(expected) - set(got))} lost"
        )
        print(f"         the same order as in one uninterrupted process: {'yes' if got == expected else 'NO'}")
        if got != expected:
            sys.exit(1)


def dataset(folder: Path) -> me.Dataset:
    """The pipeline, which every process builds for itself: eight lanes, so that any number of readers has one order."""
    return me.read(folder / "data", index_dir=folder / "index").shuffle(seed=42, window=1_000).lanes(8)


def read(folder: Path, name: str, rank: int, ranks: int, pause: float, state: str) -> None:
    """Read the shard of a rank, and save a checkpoint of what was delivered every few rows."""
    rows = dataset(folder).shard(ranks, rank)
    if state:
        rows.load_state_dict(json.loads(Path(state).read_text()))
    ids: list[int] = []
    for row in rows:
        ids.append(row["id"])
        if len(ids) % 250 == 0:
            save(folder / f"{name}.json", {"ids": ids, "state": rows.state_dict()})
        time.sleep(pause)
    save(folder / f"{name}.json", {"ids": ids, "state": rows.state_dict()})


def save(path: Path, content: dict[str, object]) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def checkpoint(folder: Path, name: str) -> dict[str, list[int]]:
    """The last checkpoint that a process wrote."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"ids": []}


def start(folder: Path, name: str, *, rank: int, ranks: int, pause: str = "0", state: object = "") -> subprocess.Popen:
    """Start a reader process."""
    arguments = [folder, name, rank, ranks, pause, state]
    return subprocess.Popen([sys.executable, __file__, "read", *map(str, arguments)])


def write(folder: Path) -> None:
    """Write the dataset."""
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "text": [f"row {row} of the dataset" for row in ids]})
        with (
            pa.OSFile(str(folder / f"part-{number}.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as out,
        ):
            out.write_table(table, max_chunksize=BLOCK)


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        path, name, rank, ranks, pause, state = sys.argv[2:]
        read(Path(path), name, int(rank), int(ranks), float(pause), state)
    else:
        main()
