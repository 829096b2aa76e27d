"""Loaders of other libraries, for ``midepoch verify --loader benchmarks.resume_checks:NAME --key id --kill``.

Run it in the environment of the library, which benchmarks/peers makes, with ``PYTHONPATH=src:.``. The 2,000 rows are
written to build/resume_checks, or to the folder that RESUME_CHECKS names.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS, BATCH, SEED = 2000, 16, 42
FOLDER = Path(os.environ.get("RESUME_CHECKS", "build/resume_checks"))


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _rows() -> list[dict[str, Any]]:
    return [{"id": row, "text": f"the text of row {row}"} for row in range(ROWS)]


def midepoch(num_workers: int = 2) -> Any:
    import midepoch as me

    dataset = me.from_indexable(_rows()).shuffle(seed=SEED)
    return me.Loader(dataset, batch_size=BATCH, num_workers=num_workers)


def datasets(num_workers: int = 2, **options: Any) -> Any:
    import datasets as hf
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = hf.Dataset.from_list(_rows()).to_iterable_dataset(num_shards=8)
    dataset = dataset.shuffle(seed=SEED, buffer_size=100, **options)
    return StatefulDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=_columns)


def datasets_one_shard(num_workers: int = 2) -> Any:
    return datasets(num_workers, max_buffer_input_shards=1)


def torchdata_nodes() -> Any:
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper, Prefetcher

    rows = IterableWrapper(_rows())
    batches = Batcher(ParallelMapper(rows, dict, num_workers=2), BATCH, drop_last=False)
    return Loader(Prefetcher(batches, prefetch_factor=4))


def litdata(num_workers: int = 2) -> Any:
    import litdata as lit

    if not (FOLDER / "litdata").exists():
        lit.optimize(
            fn=dict,
            inputs=_rows(),
            output_dir=str(FOLDER / "litdata"),
            num_workers=1,
            chunk_size=100,
            start_method="fork",
        )
    dataset = lit.StreamingDataset(str(FOLDER / "litdata"), shuffle=True, drop_last=False, seed=SEED)
    return lit.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=_columns)


def streaming(num_workers: int = 2) -> Any:
    import sys
    from types import ModuleType

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        sys.modules["streaming.vision"] = ModuleType("streaming.vision")
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    if not (FOLDER / "mds").exists():
        with MDSWriter(out=str(FOLDER / "mds"), columns={"id": "int", "text": "str"}, size_limit=4096) as writer:
            for row in _rows():
                writer.write(row)
    dataset = StreamingDataset(local=str(FOLDER / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=_columns)


class GrainLoader:
    """Grain's iterators have the state; this gives it to the loader."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.state = dataset, None
        self.iterator: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self.dataset)
        if self.state is not None:
            self.iterator.set_state(self.state)
        return self.iterator  # type: ignore[no-any-return]

    def state_dict(self) -> Any:
        return self.iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def grain(num_workers: int = 2) -> Any:
    import grain as google
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    rows = google.MapDataset.source(_rows()).seed(SEED).shuffle()
    dataset = rows.batch(BATCH, batch_fn=_columns).to_iter_dataset()
    if num_workers:
        dataset = dataset.mp_prefetch(google.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2))
    return GrainLoader(dataset)
