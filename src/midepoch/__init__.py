"""Feed PyTorch from Arrow and Parquet files in place, and stop and resume at any row."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midepoch.collating import MultiModalCollator
    from midepoch.dataset import Dataset, read
    from midepoch.errors import (
        CheckpointMismatchError,
        DataChangedError,
        DataFormatError,
        MidepochError,
        MissingExtraError,
        NoDataError,
        SchemaMismatchError,
        StoreError,
        UnknownStateError,
    )
    from midepoch.foreign import from_stateful_dataloader
    from midepoch.front.huggingface import SimpleArrowIterableDataset, fast_load_iterable_dataset, from_hf
    from midepoch.front.iceberg import IcebergDataset
    from midepoch.front.multimodal import MultiModalIterableDataset
    from midepoch.front.structured import StructuredDataset
    from midepoch.loader import Loader
    from midepoch.mixing import mix
    from midepoch.state import merge_states

__version__ = "0.1.0"

_HOMES = {
    "CheckpointMismatchError": "errors",
    "DataChangedError": "errors",
    "DataFormatError": "errors",
    "Dataset": "dataset",
    "IcebergDataset": "front.iceberg",
    "Loader": "loader",
    "MidepochError": "errors",
    "MissingExtraError": "errors",
    "MultiModalCollator": "collating",
    "MultiModalIterableDataset": "front.multimodal",
    "NoDataError": "errors",
    "SchemaMismatchError": "errors",
    "SimpleArrowIterableDataset": "front.huggingface",
    "StoreError": "errors",
    "StructuredDataset": "front.structured",
    "UnknownStateError": "errors",
    "fast_load_iterable_dataset": "front.huggingface",
    "from_hf": "front.huggingface",
    "from_stateful_dataloader": "foreign",
    "merge_states": "state",
    "mix": "mixing",
    "read": "dataset",
}

__all__ = [
    "CheckpointMismatchError",
    "DataChangedError",
    "DataFormatError",
    "Dataset",
    "IcebergDataset",
    "Loader",
    "MidepochError",
    "MissingExtraError",
    "MultiModalCollator",
    "MultiModalIterableDataset",
    "NoDataError",
    "SchemaMismatchError",
    "SimpleArrowIterableDataset",
    "StoreError",
    "StructuredDataset",
    "UnknownStateError",
    "fast_load_iterable_dataset",
    "from_hf",
    "from_stateful_dataloader",
    "merge_states",
    "mix",
    "read",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    if name in ("distributed", "testing"):
        return import_module(f"midepoch.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'midepoch' has no attribute {name!r}")
    value = getattr(import_module(f"midepoch.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
