"""The stable names for code that extends midepoch: formats, front doors, orders, stages and workers of your own.

``docs/extending.md`` explains them. All other modules below ``midepoch`` may change with any release.
"""

from typing import TYPE_CHECKING, Any

from midepoch.dataset.dataset import (
    Dataset,
    HubDescription,
    file_rows,
    from_source,
    plan_of,
    position_of,
    with_launched_shard,
    with_order_step,
    with_plan,
    with_stage,
)
from midepoch.delivery.passes import Pass
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
from midepoch.workers.interface import Worker, WorkerDiedError, Workers, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, Unpack

    from midepoch.dataset.dataset import AnyForm, Keywords, MapOptions, Names

__all__ = [
    "Context",
    "FileRows",
    "Flow",
    "Format",
    "FrontDoor",
    "HubDescription",
    "Order",
    "OrderStep",
    "Pipeline",
    "Plan",
    "Position",
    "Scan",
    "Stage",
    "TableIndex",
    "Worker",
    "WorkerDiedError",
    "WorkerSettings",
    "Workers",
    "file_rows",
    "from_source",
    "open_bytes",
    "open_file",
    "open_index",
    "plan_of",
    "position_of",
    "read_as",
    "register_format",
    "with_launched_shard",
    "with_order_step",
    "with_plan",
    "with_stage",
]


class FrontDoor(Dataset[Any]):
    """The base of datasets with methods and keys of their own. Type checkers keep its class through every method.

    What such a dataset yields is not part of its type: Python has no way to write that a method changes one and keeps
    the other. Its attributes go with every dataset that is derived from it, and to workers.
    """

    def own_keys(self, run: Pass) -> dict[str, Any]:
        """What the state of a pass has besides that of every dataset: plain values, which a resume finds again."""
        return {}

    def _state_of(self, run: Pass) -> dict[str, Any]:
        return {**super()._state_of(run), **self.own_keys(run)}

    if TYPE_CHECKING:

        def map(  # noqa: D102
            self,
            function: Callable[..., Any],
            *,
            input_columns: Names | None = None,
            fn_kwargs: Keywords | None = None,
            **options: Unpack[MapOptions],
        ) -> Self: ...

        def with_format(self, type: AnyForm | None = None) -> Self: ...  # noqa: D102
