"""What users build a dataset with: open files, act on columns, items, rows and order, mix.

read       read, tokens, from_indexable: files, or rows of any object, as a Dataset
dataset    Dataset: order, functions, columns, formats, shards, epochs, surveys, caches, states
mixing     mix and concat: several datasets as one
as_map     the items of an epoch by position, as a column, as frames
"""

from midepoch.dataset.dataset import Dataset as Dataset
from midepoch.dataset.dataset import file_rows as file_rows
from midepoch.dataset.dataset import from_source as from_source
from midepoch.dataset.dataset import plan_of as plan_of
from midepoch.dataset.dataset import position_of as position_of
from midepoch.dataset.dataset import with_launched_shard as with_launched_shard
from midepoch.dataset.dataset import with_order_step as with_order_step
from midepoch.dataset.dataset import with_plan as with_plan
from midepoch.dataset.dataset import with_stage as with_stage
