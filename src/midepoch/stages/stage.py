"""What callers know of a stage, and how a stage calls a user function."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import MidepochError
from midepoch.stages.arguments import WithArguments, check_not_async, describe_function, name_of
from midepoch.stages.counted import CountedItems, Outputs
from midepoch.stages.flow import Context, Flow


class Stage(ABC):
    """One step of a pipeline, as the user asked for it. It groups its inputs and turns each group into outputs.

    Callers learn everything about a stage from these members and never ask for its class. The defaults are those of a
    stage that makes one output of each input and calls no user function.
    """

    __slots__ = ()
    many_outputs: ClassVar[bool] = False
    """True if a group can have several outputs. The cursor then has more numbers: see ``cursor_numbers``."""
    may_skip: ClassVar[bool] = False
    """True if inputs on which a function fails are left out."""
    needs_survey: ClassVar[bool] = False
    """True if the number of outputs is known once the rows are surveyed."""
    makes_windows: ClassVar[bool] = False
    """True if it makes windows of rows, whose numbers of outputs are counted once and shared by processes."""
    sets_form: ClassVar[bool] = False
    """True if the outputs have values of a form of their own."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What users call the stage."""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions that the stage calls."""
        return ()

    @property
    def group_size(self) -> int:
        """The number of inputs in a group; the last group of a lane may have fewer."""
        return 1

    @abstractmethod
    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The outputs from ``cursor`` on. The inputs were opened at the same cursor, less this stage's own numbers."""

    def count(self, inputs: int) -> int | None:
        """The number of outputs of all ``inputs`` inputs of a lane, or None if it depends on what they hold."""
        return inputs

    @property
    def why_not_counted(self) -> str:
        """Why the number of outputs can never be known without reading, and what to do."""
        return f"how many items {self.name} yields is only known by reading the rows"

    @property
    def keeps_rows(self) -> bool:
        """True if each output is made of one row."""
        return self.group_size == 1

    @property
    def uses_rng(self) -> bool:
        """True if the outputs depend on random numbers."""
        return False

    @property
    def length_column(self) -> str | None:
        """The column whose lengths decide the number of outputs, for a stage that packs rows."""
        return None

    def document_lengths(self, inputs: Flow, context: Context) -> Iterator[tuple[I64, I64]]:
        """The keys of rows, and the lengths of that column. Only for stages that pack rows."""
        raise NotImplementedError

    def checking(self, on: bool) -> "Stage":
        """This stage for rows that a survey says it keeps, or again for any rows.

        If ``on``, it makes one output of each row, and raises SurveyMismatchError for a row that it leaves out. Only
        stages that need a survey and keep rows change.
        """
        return self

    def why_empty(self, epoch: int, process: int | None) -> MidepochError | None:
        """The error of this stage that an epoch without any item is; None if it has left out nothing.

        Only what a ``process`` has read counts, unless it is None.
        """
        return None

    def for_survey(self) -> "Stage":
        """This stage as a survey runs it: its outputs have the keys of their rows."""
        return self

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        """The outputs from ``cursor`` on, counted without reading. Only for stages that can be counted."""
        return Outputs(inputs, lambda flow: self.flow(flow, cursor, context))

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """The columns of the outputs, given those of the inputs; None if only reading tells."""
        return schema

    def describe(self) -> dict[str, Any] | None:
        """What a state remembers of the stage; None if no change of the stage changes a row."""
        return None

    def describe_as_input(self) -> dict[str, Any] | None:
        """The same where a later stage groups the outputs: then their number matters as well."""
        return self.describe()

    @property
    def one_to_one(self) -> bool:
        """True if every input becomes exactly one output."""
        return self.group_size == 1 and self.count(1) == 1


def cursor_numbers(stages: Iterable[Stage]) -> Iterator[int]:
    """How many numbers each stage adds to the cursor.

    A stage whose groups can have several outputs adds the outputs delivered of a group. If an earlier stage may skip
    inputs, it also adds a check of the group's inputs.
    """
    skips = False
    for stage in stages:
        yield stage.many_outputs * (1 + skips)
        skips = skips or stage.may_skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A user function, and how a stage calls it."""

    function: Callable[..., Any]
    stage: str
    """The stage's name."""
    number: int
    """The stage's number in its pipeline, from 1."""
    with_rng: bool = False
    with_indices: bool = False
    """True if the function gets the number of the row as well, or of each row of a batch."""
    salt: int = 0
    """Separates the random numbers of several functions. It counts only the stages that change rows."""
    version: str | int | None = None
    """The user changes it when the function makes other rows than before."""
    described: dict[str, Any] = field(init=False, repr=False, compare=False)
    """What is known of the function and its arguments as they were when the stage was made: it may change them."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"{self.stage} needs a function, got {self.function!r}.")
        check_not_async(self.function, self.stage)
        object.__setattr__(self, "described", describe_function(self.function))

    def __call__(self, item: Any, key: int, context: Context, keys: I64 | None = None) -> Any:
        """Call the function. A note on any error names the stage, the function and the row.

        An item that is made of several rows has their ``keys``, of which ``key`` is the first.
        """
        more: list[Any] = []
        if self.with_indices:
            more.append(key if keys is None else keys.tolist())
        if self.with_rng:
            more.append(context.rng(self.salt, key))
        begun = time.perf_counter()
        try:
            return self.function(item, *more)
        except Exception as error:
            error.add_note(f"midepoch: in {self.stage}({name_of(self.function)}){context.name_row(self.number, key)}")
            raise
        finally:
            FUNCTIONS.seconds += time.perf_counter() - begun

    def describe(self, **parameters: Any) -> dict[str, Any]:
        """The stage, the function's name and arguments, and the parameters that are set."""
        columns = self.function.input_columns if isinstance(self.function, WithArguments) else None
        all_parameters = {
            "with_rng": self.with_rng,
            "with_indices": self.with_indices,
            "input_columns": list(columns or ()),
            **parameters,
        }
        are_set = {key: value for key, value in all_parameters.items() if value}
        version = {} if self.version is None else {"version": self.version}
        return {"op": self.stage, **self.described, **are_set, **version}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStage(Stage):
    """A stage that calls one user function."""

    call: Call

    @property
    def name(self) -> str:
        return self.call.stage

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.call.function,)

    @property
    def uses_rng(self) -> bool:
        return self.call.with_rng

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None
