"""Feed PyTorch from Arrow and Parquet files in place, and stop and resume at any row."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midepoch import distributed as distributed
    from midepoch import extending as extending
    from midepoch import testing as testing
    from midepoch.checkpoint.merge import merge_states
    from midepoch.dataset import Dataset
    from midepoch.dataset.mixing import concat, mix
    from midepoch.dataset.reading import from_indexable, read, tokens
    from midepoch.errors import (
        CacheMismatchError,
        CheckpointMismatchError,
        DataChangedError,
        DataFormatError,
        DigestMismatchError,
        MidepochError,
        MissingExtraError,
        NoDataError,
        NotAllowedError,
        RanksDisagreeError,
        SchemaMismatchError,
        StaleIteratorError,
        StoreError,
        SurveyMismatchError,
        TooManySkippedError,
        UnknownStateError,
    )
    from midepoch.integrations.huggingface.dataset import (
        SimpleArrowIterableDataset,
        fast_load_iterable_dataset,
        from_hf,
    )
    from midepoch.integrations.iceberg import IcebergDataset
    from midepoch.integrations.multimodal.collate import MultiModalCollator
    from midepoch.integrations.multimodal.dataset import MultiModalIterableDataset
    from midepoch.integrations.structured.dataset import StructuredDataset
    from midepoch.integrations.torchdata import from_stateful_dataloader
    from midepoch.loader import Loader
    from midepoch.pipeline.schedule import WeightSchedule

__version__ = "0.1.0"

_HOMES = {
    "CacheMismatchError": "errors",
    "CheckpointMismatchError": "errors",
    "DataChangedError": "errors",
    "DataFormatError": "errors",
    "Dataset": "dataset",
    "DigestMismatchError": "errors",
    "IcebergDataset": "integrations.iceberg",
    "Loader": "loader",
    "MidepochError": "errors",
    "MissingExtraError": "errors",
    "MultiModalCollator": "integrations.multimodal.collate",
    "MultiModalIterableDataset": "integrations.multimodal.dataset",
    "NoDataError": "errors",
    "NotAllowedError": "errors",
    "RanksDisagreeError": "errors",
    "SchemaMismatchError": "errors",
    "SimpleArrowIterableDataset": "integrations.huggingface.dataset",
    "StaleIteratorError": "errors",
    "StoreError": "errors",
    "StructuredDataset": "integrations.structured.dataset",
    "SurveyMismatchError": "errors",
    "TooManySkippedError": "errors",
    "UnknownStateError": "errors",
    "WeightSchedule": "pipeline.schedule",
    "concat": "dataset.mixing",
    "fast_load_iterable_dataset": "integrations.huggingface.dataset",
    "from_hf": "integrations.huggingface.dataset",
    "from_indexable": "dataset.reading",
    "from_stateful_dataloader": "integrations.torchdata",
    "merge_states": "checkpoint.merge",
    "mix": "dataset.mixing",
    "read": "dataset.reading",
    "tokens": "dataset.reading",
}

__all__ = [
    "CacheMismatchError",
    "CheckpointMismatchError",
    "DataChangedError",
    "DataFormatError",
    "Dataset",
    "DigestMismatchError",
    "IcebergDataset",
    "Loader",
    "MidepochError",
    "MissingExtraError",
    "MultiModalCollator",
    "MultiModalIterableDataset",
    "NoDataError",
    "NotAllowedError",
    "RanksDisagreeError",
    "SchemaMismatchError",
    "SimpleArrowIterableDataset",
    "StaleIteratorError",
    "StoreError",
    "StructuredDataset",
    "SurveyMismatchError",
    "TooManySkippedError",
    "UnknownStateError",
    "WeightSchedule",
    "concat",
    "fast_load_iterable_dataset",
    "from_hf",
    "from_indexable",
    "from_stateful_dataloader",
    "merge_states",
    "mix",
    "read",
    "tokens",
]

_OTHER_NAMES = {
    "concatenate_datasets": "midepoch.concat([a, b])",
    "interleave_datasets": "midepoch.mix([a, b], weights=[0.7, 0.3])",
    "load_dataset": "midepoch.fast_load_iterable_dataset(path, split='train'), or midepoch.read(files)",
    "load_from_disk": "midepoch.fast_load_iterable_dataset(folder)",
    "split_dataset_by_node": "dataset.shard(world_size, rank), or midepoch.distributed.split_dataset_by_node",
}
"""What users of `datasets` look for, and what to use here."""


if not TYPE_CHECKING:  # else every name would exist for type checkers
    if not (sys.modules["torch"] if "torch" in sys.modules else find_spec("torch")):
        # So that a star import, help() and inspect.getmembers() work. Other uses of these names say what is missing.
        __all__ = [name for name in __all__ if name not in ("Loader", "MultiModalCollator")]

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used. So ``import midepoch`` itself takes almost no time."""
        if name in ("distributed", "extending", "testing"):
            return import_module(f"midepoch.{name}")
        if name not in _HOMES:
            hint = f". Use {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
            raise AttributeError(f"module 'midepoch' has no attribute {name!r}{hint}")
        value = getattr(import_module(f"midepoch.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
