"""The stable names for code that extends midepoch: formats, front doors, orders and stages of your own.

``docs/extending.md`` explains them. All other modules below ``midepoch`` may change with any release.
"""

from midepoch.dataset.front_door import FrontDoor
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position
from midepoch.formats.base import Format, Scan, read_as
from midepoch.formats.detect import register_format
from midepoch.index.build import open_index
from midepoch.index.tables import TableIndex
from midepoch.order.orders import Order, OrderStep
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.flow import Context, Flow
from midepoch.stages.stage import Stage
from midepoch.storage.objects import open_bytes, open_file

__all__ = [
    "Context",
    "FileRows",
    "Flow",
    "Format",
    "FrontDoor",
    "Order",
    "OrderStep",
    "Pipeline",
    "Plan",
    "Position",
    "Scan",
    "Stage",
    "TableIndex",
    "open_bytes",
    "open_file",
    "open_index",
    "read_as",
    "register_format",
]
