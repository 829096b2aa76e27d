"""Feed PyTorch from Arrow, Parquet, JSON and CSV files in place, and stop and resume at any row."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midepoch import distributed as distributed
    from midepoch import extending as extending
    from midepoch import testing as testing
    from midepoch.checkpoint.merge import merge_states as merge_states
    from midepoch.dataset import Dataset as Dataset
    from midepoch.dataset.mixing import concat as concat
    from midepoch.dataset.mixing import mix as mix
    from midepoch.dataset.read import from_indexable as from_indexable
    from midepoch.dataset.read import read as read
    from midepoch.dataset.read import tokens as tokens
    from midepoch.errors import CacheMismatchError as CacheMismatchError
    from midepoch.errors import CheckpointMismatchError as CheckpointMismatchError
    from midepoch.errors import DataChangedError as DataChangedError
    from midepoch.errors import DataFormatError as DataFormatError
    from midepoch.errors import DigestMismatchError as DigestMismatchError
    from midepoch.errors import MidepochError as MidepochError
    from midepoch.errors import MissingExtraError as MissingExtraError
    from midepoch.errors import NoDataError as NoDataError
    from midepoch.errors import NotAllowedError as NotAllowedError
    from midepoch.errors import RanksDisagreeError as RanksDisagreeError
    from midepoch.errors import SchemaMismatchError as SchemaMismatchError
    from midepoch.errors import StaleIteratorError as StaleIteratorError
    from midepoch.errors import StoreError as StoreError
    from midepoch.errors import SurveyMismatchError as SurveyMismatchError
    from midepoch.errors import TooManySkippedError as TooManySkippedError
    from midepoch.errors import UnknownStateError as UnknownStateError
    from midepoch.integrations.huggingface import SimpleArrowIterableDataset as SimpleArrowIterableDataset
    from midepoch.integrations.huggingface import fast_load_iterable_dataset as fast_load_iterable_dataset
    from midepoch.integrations.huggingface import from_hf as from_hf
    from midepoch.integrations.huggingface import load_dataset as load_dataset
    from midepoch.integrations.iceberg import IcebergDataset as IcebergDataset
    from midepoch.integrations.image_folder import image_folder as image_folder
    from midepoch.integrations.multimodal import MultiModalCollator as MultiModalCollator
    from midepoch.integrations.multimodal import MultiModalIterableDataset as MultiModalIterableDataset
    from midepoch.integrations.structured import StructuredDataset as StructuredDataset
    from midepoch.integrations.torchdata import from_stateful_dataloader as from_stateful_dataloader
    from midepoch.loader import Loader as Loader
    from midepoch.pipeline.schedule import WeightSchedule as WeightSchedule

__version__ = "0.1.0"

_MODULES = ("distributed", "extending", "testing")
_NAMES = {
    "checkpoint.merge": "merge_states",
    "dataset": "Dataset",
    "dataset.mixing": "concat mix",
    "dataset.read": "from_indexable read tokens",
    "errors": (
        "CacheMismatchError CheckpointMismatchError DataChangedError DataFormatError DigestMismatchError "
        "MidepochError MissingExtraError NoDataError NotAllowedError RanksDisagreeError "
        "SchemaMismatchError StaleIteratorError StoreError SurveyMismatchError TooManySkippedError "
        "UnknownStateError"
    ),
    "integrations.huggingface": "SimpleArrowIterableDataset fast_load_iterable_dataset from_hf load_dataset",
    "integrations.iceberg": "IcebergDataset",
    "integrations.image_folder": "image_folder",
    "integrations.multimodal": "MultiModalCollator MultiModalIterableDataset",
    "integrations.structured": "StructuredDataset",
    "integrations.torchdata": "from_stateful_dataloader",
    "loader": "Loader",
    "pipeline.schedule": "WeightSchedule",
}
"""The public names, by the modules that have them, which are imported when a name is first used."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)

_OTHER_NAMES = {
    "concatenate_datasets": "midepoch.concat([a, b])",
    "interleave_datasets": "midepoch.mix([a, b], weights=[0.7, 0.3])",
    "load_from_disk": "midepoch.fast_load_iterable_dataset(folder)",
    "split_dataset_by_node": "dataset.shard(world_size, rank), or midepoch.distributed.split_dataset_by_node",
}
"""What users of `datasets` look for, and what to use here."""


if not TYPE_CHECKING:  # else every name would exist for type checkers
    if not (sys.modules["torch"] if "torch" in sys.modules else find_spec("torch")):
        # So that a star import, help() and inspect.getmembers() work. Other uses of the name say what is missing.
        __all__.remove("Loader")

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used. So ``import midepoch`` itself takes almost no time."""
        if name in _MODULES:
            return import_module(f"midepoch.{name}")
        if name not in _HOMES:
            hint = f". Use {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
            raise AttributeError(f"module 'midepoch' has no attribute {name!r}{hint}")
        value = getattr(import_module(f"midepoch.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
