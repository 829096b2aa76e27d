"""The stable names for code that extends midepoch: front doors, orders and stages of your own.

``docs/extending.md`` explains them. All other modules below ``midepoch`` may change with any release.
"""

from midepoch.dataset.front_door import FrontDoor
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position
from midepoch.index.build import open_index
from midepoch.index.tables import TableIndex
from midepoch.order.orders import Order, OrderStep
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.flow import Context, Flow
from midepoch.stages.stage import Stage

__all__ = [
    "Context",
    "FileRows",
    "Flow",
    "FrontDoor",
    "Order",
    "OrderStep",
    "Pipeline",
    "Plan",
    "Position",
    "Stage",
    "TableIndex",
    "open_index",
]
