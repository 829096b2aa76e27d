"""The functions of a user, the same for every contender: a tokeniser, a decoder of images, and how to count."""

import io
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

SIDE = 224
TOKENISER = Path(__file__).parents[1] / "data" / "peers" / "tokeniser.json"


@cache
def _tokeniser() -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are the parallelism here
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENISER))


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """The tokens of some texts."""
    return [encoded.ids for encoded in _tokeniser().encode_batch(list(texts))]


def decode(jpeg: bytes) -> Any:
    """A tensor of 3 × 224 × 224 bytes."""
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as image:
        pixels = np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    # in order: torch takes longer to stack tensors that are not than to decode them
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def rows_of(batch: Any) -> int:
    """The number of rows in a batch: the length of its first column, or its own."""
    if isinstance(batch, Mapping):
        return len(next(iter(batch.values())))
    return len(batch)


def tokens_of(batch: Mapping[str, Any]) -> int:
    """The tokens of a padded batch, without padding."""
    return int(batch["attention_mask"].sum())


def numbers_of(batch: Any) -> list[int]:
    """The column ``number`` of a batch of texts, which names its rows."""
    column = batch["number"] if isinstance(batch, Mapping) else [row["number"] for row in batch]
    return [int(value) for value in column]
