"""IcebergDataset: the rows of one snapshot of an Iceberg table."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, Self

from midepoch._common.checks import Size
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan
from midepoch.errors import CheckpointMismatchError
from midepoch.integrations.iceberg_snapshot import Snapshot
from midepoch.integrations.structured.dataset import StructuredDataset
from midepoch.integrations.structured.options import OutputFormat, StructuredOptions, dataset_options, loader_options
from midepoch.storage.block_cache import CACHE

if TYPE_CHECKING:
    from midepoch.integrations.structured.loader import StructuredLoader


class IcebergDataset(StructuredDataset):
    """The rows of one snapshot of an Iceberg table.

        loader, dataset = IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=1024)

    Its states name the snapshot, and the schema under which it is read.
    """

    def __init__(
        self,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        filters: Any = None,
        snapshot_id: int | None = None,
        schema_id: int | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        output_format: OutputFormat = "dict",
        storage_options: Mapping[str, Any] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Open a snapshot. :meth:`create_dataloader` explains the arguments, which mean the same there.

        ``table``, ``catalog_config``, ``snapshot_id`` and ``schema_id`` say what is read. ``scan_filter`` and
        ``filters`` are two names of one filter. By default ``columns`` are all of the table. ``output_format`` is that
        of each row; the default, "dict", has Python values, of which a Loader makes tensors when it makes batches.
        ``shuffle``, ``shuffle_seed``, ``shuffle_buffer_size``, ``split_bytes``, ``split_rows``, ``split_strategy``,
        ``num_ranks``, ``rank``, ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``,
        ``trust_shared`` and ``executor`` are those of
        :class:`midepoch.StructuredDataset`.
        """
        arguments = locals()
        snapshot = Snapshot(table, catalog_config, snapshot_id, schema_id)
        options = StructuredOptions.of(
            arguments,
            columns=snapshot.columns.names if columns is None else columns,
            filters=_arrow_filter(snapshot, scan_filter, filters),
            partitioning=None,
        )
        self._begin(snapshot.open(options), options)
        self._snapshot_id, self._schema_id = snapshot.id, snapshot.schema_id

    @classmethod
    def create_dataloader(  # type: ignore[override]
        cls,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 1024,
        scan_filter: Any = None,
        filters: Any = None,
        snapshot_id: int | None = None,
        schema_id: int | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        num_workers: int | None = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        progress_interval_sec: float | None = None,
        drop_last: bool = False,
        even: Literal["auto", "pad", "drop"] | None = "auto",
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
        executor: Executor | None = None,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and its dataset. The two share one position, so a state of either resumes both.

            loader, dataset = midepoch.IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=32)

        ``table`` is an open table, or a name such as "db.events" in the catalog that ``catalog_config`` describes: the
        arguments of ``pyiceberg.catalog.load_catalog``. ``snapshot_id`` is by default that of the current snapshot; a
        later snapshot of the table changes nothing. ``schema_id`` is by default that of the current schema, or with a
        ``snapshot_id`` that of the schema under which it was written. ``scan_filter`` is an Iceberg filter, as text or
        as an expression; ``filters`` takes the same, or an Arrow expression. Pass one of the two. By default
        ``columns`` are all of the table.

        All other arguments are those of :meth:`midepoch.StructuredDataset.create_dataloader`. About batches:
        ``batch_size``, ``drop_last``, ``even``, ``output_format`` and ``collate_fn``. About the order and the shard:
        ``shuffle``, ``shuffle_seed``, ``shuffle_buffer_size``, ``split_bytes``, ``split_rows``, ``split_strategy``,
        ``num_ranks`` and ``rank``. About workers: ``num_workers``, ``pin_memory``, ``prefetch_factor``,
        ``persistent_workers``, ``multiprocessing_context``, ``worker_init_fn`` and ``timeout``. About files:
        ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``trust_shared`` and
        ``executor``. And about the progress bar: ``show_progress`` and ``progress_interval_sec``.
        """
        arguments = locals()
        dataset = cls(
            table,
            catalog_config,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            schema_id=schema_id,
            **dataset_options(arguments),
        )
        return dataset._with_loader(**loader_options(arguments))

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """What the loop has received, with the snapshot that is read, and the schema under which it is read."""
        return {**super().describe_state(run), **self._read_as}

    @property
    def _read_as(self) -> dict[str, int]:
        return {"snapshot_id": self._snapshot_id, "schema_id": self._schema_id}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state of the same snapshot and the same columns.

            dataset.load_state_dict(torch.load("data.pt", weights_only=True))

        ``state_dict`` is a state of this dataset or of its loader. If it is one of another snapshot, or if the columns
        have other names, ids or types since the table's schema has changed, this raises. Open the table with the
        ``snapshot_id`` and ``schema_id`` that the error names then. The files of a snapshot never change, so
        ``new_files`` can only be "error".
        """
        if new_files != "error":
            raise ValueError("new_files='append' is not possible with Iceberg: the files of a snapshot never change.")
        if isinstance(state_dict, Mapping):
            self._check_read_as(state_dict)
        super().load_state_dict(state_dict)

    def _check_read_as(self, state: Mapping[str, Any]) -> None:
        """Raise if a state was taken on another snapshot, or under a schema by which rows are others."""
        now = self._read_as
        then = {name: state.get(name, value) for name, value in now.items()}
        saved, own = _read_stage(state.get("fingerprint")), _read_stage(self.plan.pipeline.fingerprint)
        if then["snapshot_id"] == now["snapshot_id"] and (then == now or saved == own):
            return
        raise CheckpointMismatchError(
            f"The checkpoint was taken on snapshot {then['snapshot_id']} of the table, read by schema "
            f"{then['schema_id']}, and snapshot {now['snapshot_id']} is read by schema {now['schema_id']} now. Pass "
            f"snapshot_id={then['snapshot_id']}, schema_id={then['schema_id']}, or start over without the state."
        )

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same snapshot at the beginning of another plan."""
        made = super().with_plan(plan)
        made._snapshot_id, made._schema_id = self._snapshot_id, self._schema_id
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._read_as}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        self._snapshot_id, self._schema_id = values["snapshot_id"], values["schema_id"]


def _read_stage(fingerprint: Any) -> Any:
    """What a fingerprint says of the columns that are read: their names, ids and types."""
    stages = fingerprint.get("pipeline") if isinstance(fingerprint, Mapping) else None
    return stages[0] if isinstance(stages, list) and stages else None


def _arrow_filter(snapshot: Snapshot, scan_filter: Any, filters: Any) -> Any:
    """The filter as an Arrow expression, whichever of the two arguments it came in."""
    if scan_filter is not None and filters is not None:
        raise ValueError("scan_filter and filters mean the same. Pass one of them.")
    if filters is not None and type(filters).__module__.startswith("pyarrow"):
        return filters
    wanted = filters if scan_filter is None else scan_filter
    return None if wanted is None else snapshot.filters(wanted)
