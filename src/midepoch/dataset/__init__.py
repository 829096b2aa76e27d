"""What users build a dataset with: open files, act on columns, items, rows and order, mix.

    reading      read, tokens, from_indexable: files, or rows of any object, as a Dataset
    mixing       mix and concat: several datasets as one
    dataset      Dataset: shards, epochs, surveys and caches
    ordered      the order of rows: shuffle, take, select, leave out, split
    transforms   functions, filters, batches and packs
    formatted    the form of values, and decoded images and audio
    table        columns, and all rows at once
    planned      the base of these: a plan, a position, and the seam for front doors
    signatures   what type checkers know of all these methods
    map_view     the items by position, for trainers that index
    front_door   the base of datasets with methods of their own

From ``planned`` up to ``dataset``, each of the six builds on the one below it: together they are one class.
"""

from midepoch.dataset.dataset import Dataset

__all__ = ["Dataset"]
