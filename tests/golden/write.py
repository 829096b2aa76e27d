"""Write the golden states of this version: a state of each kind, and the rows that come after it."""

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import midepoch as me
from midepoch.checkpoint.state import VERSION
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


DOORS = {
    "structured": lambda folder: me.StructuredDataset(
        folder, shuffle=True, shuffle_seed=1, shuffle_buffer_size=12, split_rows=10
    ),
    "huggingface": lambda folder: me.SimpleArrowIterableDataset(sorted(map(str, folder.glob("*.arrow")))).shuffle(
        1, window=12
    ),
}


def golden_files(folder: Path) -> Path:
    """The files of which the golden states are."""
    return write_files(folder, [20, 0, 7, 33], kinds=["stream"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = golden_files(Path(folder) / "data")
        for name, build in PIPELINES.items():
            _write(name, build(me.read(data, index_dir=folder)))
        for name, door in DOORS.items():
            _write(f"front_doors/{name}", door(data))
        for name in ("filter", "uniform"):
            for items in (1, 7):
                _write_workers(name, items, PIPELINES[name](me.read(data, index_dir=folder)))


def _write(name: str, dataset: me.Dataset) -> None:
    items = iter(dataset)
    list(islice(items, 7))
    _write_file(name, state=dataset.state_dict(), rest=ids(items))


def _write_workers(name: str, items: int, dataset: me.Dataset) -> None:
    """A StatefulDataLoader with two workers. After 1 item the second worker has not begun."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    batches = iter(loader)
    list(islice(batches, items))
    _write_file(f"front_doors/workers-{name}-{items}", state=loader.state_dict(), rest=ids(batches))


def _write_file(name: str, **values: object) -> None:
    folder, _, last = name.rpartition("/")
    path = Path(__file__).parent / folder / f"v{VERSION}-{last}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"pipeline": last, **values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
