"""The stable names for code that extends midepoch: formats, front doors, orders, stages and workers of your own.

``docs/extending.md`` explains them. All other modules below ``midepoch`` may change with any release.
"""

from typing import TYPE_CHECKING, Any

from midepoch.dataset.dataset import Dataset
from midepoch.dataset.dataset import HubDescription as HubDescription
from midepoch.dataset.dataset import file_rows as file_rows
from midepoch.dataset.dataset import from_source as from_source
from midepoch.dataset.dataset import plan_of as plan_of
from midepoch.dataset.dataset import position_of as position_of
from midepoch.dataset.dataset import with_launched_shard as with_launched_shard
from midepoch.dataset.dataset import with_order_step as with_order_step
from midepoch.dataset.dataset import with_plan as with_plan
from midepoch.dataset.dataset import with_stage as with_stage
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan as Plan
from midepoch.delivery.position import Position as Position
from midepoch.formats.base import Format as Format
from midepoch.formats.base import Scan as Scan
from midepoch.formats.base import read_as as read_as
from midepoch.formats.detect import register_format as register_format
from midepoch.index.build import open_index as open_index
from midepoch.index.tables import TableIndex as TableIndex
from midepoch.order.orders import Order as Order
from midepoch.order.orders import OrderStep as OrderStep
from midepoch.pipeline.pipeline import Pipeline as Pipeline
from midepoch.sources.files import FileRows as FileRows
from midepoch.stages.flow import Context as Context
from midepoch.stages.flow import Flow as Flow
from midepoch.stages.stage import Stage as Stage
from midepoch.storage.objects import open_bytes as open_bytes
from midepoch.storage.objects import open_file as open_file
from midepoch.workers.interface import Worker as Worker
from midepoch.workers.interface import WorkerDiedError as WorkerDiedError
from midepoch.workers.interface import Workers as Workers
from midepoch.workers.interface import WorkerSettings as WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, Unpack

    from midepoch.dataset.dataset import AnyForm, Keywords, MapOptions, Names


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
