"""The Hugging Face front door of midepoch under the name that many scripts import."""

from midepoch.integrations.huggingface import SimpleArrowIterableDataset, fast_load_iterable_dataset

__all__ = ["SimpleArrowIterableDataset", "fast_load_iterable_dataset"]
