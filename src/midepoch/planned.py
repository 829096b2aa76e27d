"""A plan and a position: what every dataset is, and the seam that front doors and loaders build on.

:class:`midepoch.Dataset` adds the methods with which users build a plan. ``docs/extending.md`` explains the seam.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from midepoch._common.world import is_starting_a_process, torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position
from midepoch.delivery.progress import Progress
from midepoch.delivery.reader import take_turns
from midepoch.delivery.workers import SharedWithWorkers
from midepoch.order.orders import OrderStep, Slice
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.sources.source import Source
from midepoch.stages.stage import Stage
from midepoch.values.collate import standalone


class PlannedDataset:
    """A frozen plan, and the position of the iteration, which is the only thing that changes."""

    def __init__(self, plan: Plan) -> None:
        """Start at the beginning of a plan. Users call :func:`midepoch.read`."""
        self._plan = plan
        self._position = Position(State())

    @classmethod
    def from_source(cls, source: Source) -> Self:
        """A dataset of a source's items, without a call of the subclass's own ``__init__``."""
        made = object.__new__(cls)
        PlannedDataset.__init__(made, Plan(pipeline=Pipeline(source=source)))
        return made

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same class at the beginning of another plan. Every builder method ends here.

        A subclass with attributes of its own overrides this and copies them.
        """
        made = object.__new__(type(self))
        PlannedDataset.__init__(made, plan)
        return made

    @property
    def plan(self) -> Plan:
        """What is read, and by which rank."""
        return self._plan

    @property
    def position(self) -> Position:
        """How far the iteration has come. A loader moves the position of its dataset."""
        return self._position

    def file_rows(self, purpose: str) -> FileRows:
        """The source: the index, columns and order of files. Raises on a mixture; ``purpose`` is for the message."""
        source = self._plan.pipeline.source
        if isinstance(source, FileRows):
            return source
        raise TypeError(f"{purpose} is not possible on a mixture: use it on each of the datasets before mixing them.")

    def with_order_step(self, name: str, step: OrderStep) -> Self:
        """Add a last step to the order of rows; ``name`` is for messages.

        The step permutes or selects rows that nobody has read yet. So this raises after a stage that changes the number
        of items.
        """
        resizing = self._plan.pipeline.first_resizing
        if resizing is not None:
            raise ValueError(
                f"{name} after {resizing} is not possible: {resizing} changes the number of items, and {name} acts on "
                f"rows without reading them. Put {name} first."
            )
        rows = self.file_rows(name)
        if rows.where is not None and isinstance(step, Slice):
            raise ValueError(
                f"{name} after read(filters=...) is not possible: filters change the number of rows, and {name} acts "
                f"on rows without reading them. To cut first, read without filters, then use .{name}(n).filter(fn)."
            )
        pipeline = replace(self._plan.pipeline, source=replace(rows, steps=(*rows.steps, step)))
        return self.with_plan(replace(self._plan, pipeline=pipeline))

    def with_stage(self, stage: Stage) -> Self:
        """Add a last stage to the pipeline."""
        pipeline = self._plan.pipeline
        return self.with_plan(replace(self._plan, pipeline=replace(pipeline, stages=(*pipeline.stages, stage))))

    @property
    def epoch(self) -> int:
        """The epoch of the next item."""
        return self._position.state().epoch

    def __len__(self) -> int:
        """How many items this rank gets in one loop, known without reading."""
        plan = self._plan
        if not plan.pipeline.uniform:
            source = "read(filters=...)" if isinstance(plan.pipeline.source, FileRows) else "a mixture"
            what = plan.pipeline.first_uncounted or source
            raise TypeError(f"The length is unknown: how many items {what} yields is only known by reading the rows.")
        if plan.passes is None:
            raise TypeError("The length is unknown: repeat() never ends.")
        fresh = plan.begin(State())
        return plan.passes * sum(limit for limit in fresh.limits if limit is not None)

    def __bool__(self) -> bool:
        """True, also if the length is unknown."""
        return True

    def __repr__(self) -> str:
        pipeline = self._plan.pipeline
        steps = " → ".join(str(step["op"]) for step in pipeline.describe())
        return f"<midepoch.{type(self).__name__} of {pipeline.source}{steps and ': '}{steps}>"

    def __iter__(self) -> Iterator[Any]:
        """Continue from the position: the beginning, the end of the last loop, or what a state or epoch set."""
        self._position.enter_worker()
        return self._position.run(self._plan, _read_here)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. If the dataset is in that epoch already, it stays at its position.

        The next loop yields what is left of that epoch, so a loop that counts epochs can be resumed anywhere.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, and nothing that it has not. Plain values, about 1 KB."""
        return self._position.state_dict(self._plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a state. If it does not fit, this raises, says what differs, and changes nothing."""
        self._position.load_state_dict(self._plan, state)

    def __getstate__(self) -> dict[str, Any]:
        position = self._position
        values = {"plan": self._plan, "state": position.state(), "requested_epoch": position.requested_epoch}
        if self._position.workers is not None and is_starting_a_process():
            values["workers"] = self._position.workers
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._plan = values["plan"]
        self._position = Position(values["state"])
        self._position.requested_epoch = values.get("requested_epoch")
        self._position.workers = values.get("workers")

    @property
    def __class__(self) -> type:
        # A DataLoader asks isinstance(dataset, IterableDataset) before it starts workers, and isinstance looks here.
        # No other hook works with either import order, and none comes before a fork. So torch learns the class here,
        # and the dataset gets the memory that it shares with its copies in workers. To repeat it changes nothing.
        data = sys.modules.get("torch.utils.data")
        if data is not None and hasattr(data, "IterableDataset"):
            data.IterableDataset.register(PlannedDataset)
            if self._position.workers is None:
                self._position.workers = SharedWithWorkers()
        return type(self)

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("A Dataset's class cannot be changed.")


def _read_here(progress: Progress) -> Iterator[Iterable[Any]]:
    items_in_bulk = progress.follow(take_turns(progress))
    return items_in_bulk if torch_worker() is None else (map(standalone, items) for items in items_in_bulk)
