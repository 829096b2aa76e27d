"""The Loader: a torch DataLoader that knows what it has delivered.

    loader      Loader: its constructor and its arguments
    delivering  the batches of a pass: in this process or by workers, as many on every rank
    column_kinds  notices columns that change between tensor and list
    asking      length, progress, metrics, digests, and which rows come when
    position    the plan, the position, and their states
    options     how a Loader reads its dataset: its batches, lanes and ranks

``position``, ``asking``, ``delivering`` and ``loader`` build on each other, in this order, to one class.
"""

from midepoch.errors import MissingExtraError

try:
    import torch.utils.data  # noqa: F401
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.Loader") from error

from midepoch.loader.loader import Loader

__all__ = ["Loader"]
