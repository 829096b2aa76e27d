"""What users build a dataset with: open files, act on columns, items, rows and order, mix.

read       read, tokens, from_indexable: files, or rows of any object, as a Dataset
dataset    Dataset: order, functions, columns, formats, shards, epochs, surveys, caches, states
mixing     mix and concat: several datasets as one
as_map     the items of an epoch by position, as a column, as frames
"""

from midepoch.dataset.dataset import (
    Dataset,
    file_rows,
    from_source,
    plan_of,
    position_of,
    with_launched_shard,
    with_order_step,
    with_plan,
    with_stage,
)

__all__ = [
    "Dataset",
    "file_rows",
    "from_source",
    "plan_of",
    "position_of",
    "with_launched_shard",
    "with_order_step",
    "with_plan",
    "with_stage",
]
