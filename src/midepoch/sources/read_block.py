"""A block in memory, or on its way there."""

from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

import pyarrow as pa

Data: TypeAlias = "pa.Table | pa.RecordBatch"


class ReadBlock(NamedTuple):
    """A block in memory. A view shows the file as it is now, so its file is checked again before each use."""

    data: Data
    is_view: bool


PendingBlock: TypeAlias = "Future[ReadBlock]"


def as_batch(data: Data) -> Data:
    """A block as one record batch, which is sliced faster than a table; unchanged if that would need a copy.

    A string column with more bytes than 32-bit offsets can address comes in several chunks that cannot be joined.
    """
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    return batches[0] if len(batches) == 1 else data
