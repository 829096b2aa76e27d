"""A plan and a position: what every dataset is, and the seam that front doors and loaders build on.

:class:`midepoch.Dataset` adds the methods with which users build a plan. ``docs/extending.md`` explains the seam.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from midepoch._common.checks import check_integer
from midepoch._common.world import is_starting_a_process, launched_rank, torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.passes import Pass, PassIterator
from midepoch.delivery.plan import Plan, describe_plan
from midepoch.delivery.position import Position, SharedWithWorkers
from midepoch.delivery.reader import take_turns
from midepoch.delivery.trace import predicted_digest
from midepoch.order.orders import OrderStep, Slice
from midepoch.order.selection import Selection, TrainTestSplit
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.surveyed import choose_kept_rows, remedy
from midepoch.sources.files import FileRows
from midepoch.sources.source import Source
from midepoch.stages.stage import Stage
from midepoch.values.collate import standalone

if TYPE_CHECKING:  # type checkers see what isinstance says; nothing is imported for it
    from torch.utils.data import IterableDataset
    from typing_extensions import TypeVar as TypeVarWithDefault

    Item = TypeVarWithDefault("Item", covariant=True, default=Any)

    class Base(IterableDataset[Item], Generic[Item]):
        """What a dataset is for torch."""
else:
    Item = TypeVar("Item", covariant=True)
    Base = Generic


class HubDescription(NamedTuple):
    """What a Hugging Face dataset says of itself."""

    info: Callable[[], Any]
    """Returns its ``DatasetInfo``, which may have to be read, and whose class `datasets` has."""
    split: Any


class PlannedDataset(Base[Item]):
    """A frozen plan, and the position of its iterations, which is the only thing that changes.

    ``Item`` is what it yields, for type checkers; a ``Dataset`` without it may yield anything.
    """

    hub_description: HubDescription | None = None
    """Set by front doors of Hugging Face datasets. Datasets that are derived have the same."""

    def __init__(self, plan: Plan) -> None:
        """Start at the beginning of ``plan``, which says what is read and by whom. Users call :func:`midepoch.read`."""
        self._position = Position(State())
        self._plan = plan

    @classmethod
    def from_source(cls, source: Source) -> Self:
        """A dataset of a source's items, without a call of the subclass's own ``__init__``."""
        made = object.__new__(cls)
        PlannedDataset.__init__(made, Plan(pipeline=Pipeline(source=source)))
        return made

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same class at the beginning of another plan. Every builder method ends here.

        It starts at the epoch that ``set_epoch`` named, if any. A subclass with attributes of its own overrides this
        and copies them.
        """
        made = object.__new__(type(self))
        PlannedDataset.__init__(made, plan)
        made._position = self._position.for_derived()
        made.hub_description = self.hub_description
        return made

    @property
    def plan(self) -> Plan:
        """What is read, and by which rank."""
        return self._plan

    @property
    def position(self) -> Position:
        """Where the next pass starts, and which pass delivered last. A Loader has a position of its own."""
        return self._position

    def file_rows(self, purpose: str) -> FileRows:
        """The source: the index, columns and order of files. Raises on a mixture; ``purpose`` is for the message."""
        return _file_rows(self._plan.pipeline, purpose)

    def with_order_step(self, name: str, step: OrderStep) -> Self:
        """Add a last step to the order of rows; ``name`` is for messages.

        The step permutes or selects rows that nobody has read yet. After filters that a survey covers, these are the
        rows that the filters keep. This raises after any other stage that changes the number of items.
        """
        if self._plan.sharded_by == "user" and isinstance(step, Slice | Selection):
            raise ValueError(
                f"{name} after shard is not possible: {name} acts on the rows of all shards. A number of rows for each "
                f"shard would have no meaning after a resize. Put it first: dataset.{name}(n).shard(...)."
            )
        pipeline = choose_kept_rows(self._plan.pipeline)
        resizing = pipeline.first_resizing
        if resizing is not None:
            raise ValueError(
                f"{name} after {resizing} is not possible: {resizing} changes the number of items, and {name} acts on "
                f"rows without reading them. {remedy(pipeline, name)}"
            )
        rows = _file_rows(pipeline, name)
        if not rows.uniform and isinstance(step, Slice | Selection | TrainTestSplit):
            raise ValueError(
                f"{name} after read(filters=...) is not possible: filters change the number of rows, and {name} acts "
                f"on rows without reading them. {remedy(pipeline, name)} To put it first, read without filters, use "
                f".{name}(n), and then .filter(fn)."
            )
        pipeline = replace(pipeline, source=replace(rows, steps=(*rows.steps, step)))
        return self.with_plan(replace(self._plan, pipeline=pipeline))

    def with_launched_shard(self) -> Self:
        """The shard of the rank that was launched, unless a shard was chosen. A later ``shard`` replaces it.

        For front doors whose datasets are sharded by themselves. Outside of a launcher the dataset stays complete.
        """
        launched, plan = launched_rank(), self._plan
        is_chosen = plan.sharded_by == "user" or (plan.sharded_by is None and plan.ranks > 1)
        if launched is None or is_chosen:
            return self
        rank, ranks = launched
        return self.with_plan(replace(plan, ranks=ranks, rank=rank, sharded_by="launcher"))

    def with_stage(self, stage: Stage) -> Self:
        """Add a last stage to the pipeline."""
        pipeline = self._plan.pipeline
        return self.with_plan(replace(self._plan, pipeline=pipeline.with_stages(stage)))

    @property
    def epoch(self) -> int:
        """The epoch of the next item."""
        return self._position.epoch

    def __len__(self) -> int:
        """How many items this rank gets in one loop in this process, known without reading."""
        return self._plan.length(self._position.epoch)

    @property
    def counted(self) -> bool:
        """True if it is known without reading how many items there are.

        Then the state of any one rank restores all ranks, ``len()`` works, and a Loader gives all ranks the same number
        of steps. :meth:`why_not_counted` says what is missing.
        """
        return self._plan.counted

    def why_not_counted(self) -> str | None:
        """Which stage keeps the items from being counted, and what to do.

            print(midepoch.read("data/*.parquet").filter(lambda row: row["id"] > 7).why_not_counted())

        None if they are counted.
        """
        reason = self._plan.why_not_counted()
        return None if reason is None else f"{reason[0].upper()}{reason[1:]}."

    def __bool__(self) -> bool:
        """True, also if the length is unknown."""
        return True

    def __repr__(self) -> str:
        if "_plan" not in vars(self):  # its constructor has raised, and a debugger shows it
            return object.__repr__(self)
        return describe_plan(f"midepoch.{type(self).__name__}", self._plan, epoch=self.epoch)

    def digest(self, epoch: int = 0) -> int:
        """The digest that an epoch of ``Loader(dataset, digest=True)`` will have at its end. Nothing is read.

            assert loader.digest() == dataset.digest()

        ``epoch`` matters only where epochs differ in what they deliver, as with ``pack`` or ``take`` after a shuffle.
        Packs also depend on the number of lanes: fix it with ``lanes(n)``. Raises if the items are not counted.
        """
        return predicted_digest(self.plan, check_integer("epoch", epoch))

    def head(self, n: int = 5) -> list[Item]:
        """The first ``n`` items of a pass from the start point, to look at.

            print(midepoch.read("data/*.parquet").shuffle(seed=42).head(3))

        No position moves.
        """
        with_own_position = copy(self)
        return list(islice(iter(with_own_position), check_integer("n", n)))

    def __iter__(self) -> PassIterator[Item]:
        """A pass from the start point: the beginning of the epoch, or the state that was loaded.

        A pass that reaches its end moves the start point to the next epoch. One that is left early does not. Iterators
        are independent of each other, and each has a ``state_dict`` of its own.
        """
        run = self._position.begin(self._plan)
        return PassIterator.over(run, _read_here(run), self.describe_state)

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch. If a state of that epoch was loaded, it starts there.

            for epoch in range(dataset.epoch, 3):
                dataset.set_epoch(epoch)
                for row in dataset:
                    pass

        ``epoch`` counts from 0. The next loop yields what is left of that epoch, so a loop that counts epochs can be
        resumed anywhere. Iterators in other epochs are out of date. Datasets that are made of this one afterwards, by
        ``map``, ``shard`` or ``take``, start at that epoch too.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, and nothing that it has not. Plain values, about 1 KB.

            torch.save(dataset.state_dict(), "state.pt")

        With several iterators it is the state of the open one that delivered last, else of the last that was left;
        before any, of the start point.
        """
        self._position.check_known()
        return self.describe_state(self._position.latest(self._plan))

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass as plain values. A subclass may add keys of its own."""
        return run.plan.pipeline.state_dict(run.state())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start from a state. If it does not fit, this raises, says what differs, and changes nothing.

            dataset.load_state_dict(state)

        ``state_dict`` is what :meth:`state_dict` returned, in this run or another, or :func:`midepoch.merge_states`
        made of such states. After the state of the last item of an epoch the next loop yields nothing, and the one
        after it is the next epoch. This may be called at any time. Iterators from before are out of date: they raise
        when they are advanced.
        """
        self._position.load_state_dict(self._plan, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        values: dict[str, Any] = {"plan": self._plan, "start_point": self._position}
        if self._position.workers is not None and is_starting_a_process():
            values["workers"] = self._position.workers
        if self.hub_description is not None and not is_starting_a_process():  # workers would import `datasets` for it
            values["hub_description"] = self.hub_description
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._plan = values["plan"]
        self._position = copy(values["start_point"])
        self._position.workers = values.get("workers")
        self.hub_description = values.get("hub_description")

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


def _file_rows(pipeline: Pipeline, purpose: str) -> FileRows:
    if isinstance(pipeline.source, FileRows):
        return pipeline.source
    raise TypeError(f"{purpose} is not possible on a mixture: use it on each of the datasets before mixing them.")


def _read_here(run: Pass) -> Iterator[Iterable[Any]]:
    with run:
        for progress in run.epochs():
            items_in_bulk = run.deliver(take_turns(progress))
            yield from items_in_bulk if torch_worker() is None else (map(standalone, items) for items in items_in_bulk)
