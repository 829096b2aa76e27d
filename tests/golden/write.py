"""Write the golden states of this release: a state of each kind, and the rows that come after it."""

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import midepoch as me
from worlds import ids, is_kept, write_files


def summed(pack):
    """A pack as one number, under the name of a row's."""
    return {"id": int((pack["tokens"] * (1 + pack["position_ids"])).sum())}


PIPELINES = {
    "uniform": lambda ds: ds.shuffle(1, window=12).lanes(3).batch(4),
    "windows": lambda ds: ds.shuffle(1, window=12, window_blocks=2, window_bytes=1200).lanes(3),
    "filter": lambda ds: ds.shuffle(1, window=12).lanes(3).filter(is_kept),
    "row": lambda ds: ds.shuffle(5, level="row"),
    "pack": lambda ds: ds.shuffle(2, window=12).lanes(2).pack(9, column="tokens", window=8).map(summed),
    "stream": lambda ds: ds.shuffle(2, window=12).lanes(2).pack(5, column="tokens", strategy="concat").map(summed),
    "nested": lambda ds: me.mix(
        [me.mix([ds.shuffle(1, window=12), ds.filter(is_kept)]), ds.shuffle(2, window=12)], seed=3
    ).lanes(2),
    "mix": lambda ds: me.mix({"all": ds.shuffle(1), "kept": ds.filter(is_kept)}, [2, 1], seed=3).lanes(2),
}


def main(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = write_files(Path(folder) / "data", [20, 0, 7, 33], kinds=["stream"])
        for name, build in PIPELINES.items():
            dataset = build(me.read(data, index_dir=folder))
            items = iter(dataset)
            list(islice(items, 7))
            golden = {"pipeline": name, "state": dataset.state_dict(), "rest": ids(items)}
            path = Path(__file__).parent / f"{version}-{name}.json"
            path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
