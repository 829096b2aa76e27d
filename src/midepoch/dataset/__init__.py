"""What users build a dataset with: open files, act on rows, columns and order, mix.

    reading      read, tokens, from_indexable: files, or rows of any object, as a Dataset
    dataset      Dataset: its order of rows, splits, shards, surveys and caches
    transforms   functions, batches, packs and formats
    table        columns, and all rows at once
    planned      the base of these: a plan, a position, and the seam for front doors
    mixing       mix and concat: several datasets as one
    map_view     the items by position, for trainers that index
    front_door   the base of datasets with methods of their own

``planned``, ``table``, ``transforms`` and ``dataset`` build on each other, in this order, to one class.
"""

from midepoch.dataset.dataset import Dataset

__all__ = ["Dataset"]
