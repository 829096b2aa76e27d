"""What callers know of a stage; how a stage calls a user function, and what a checkpoint knows of that."""

import inspect
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64, digest
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import MidepochError, SchemaMismatchError
from midepoch.stages.counted import CountedItems, Outputs
from midepoch.stages.flow import Context, Flow

LONGEST = 100
"""The most characters of JSON in which an argument is described as it is. A longer one is described by a digest."""


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
        return Outputs(inputs, lambda flow: self.for_survey().flow(flow, cursor, context))

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


def why_no_survey(stages: Iterable[Stage], *, of_mixture: bool = False) -> str | None:
    """Which stage keeps a survey from counting the items, and what to do; None if one can count them.

    The rows of a mixture have no numbers, so only packs can be counted there, by surveys of the parts.
    """
    grouping, random = "mix" if of_mixture else None, None
    for stage in stages:
        if stage.needs_survey:
            if grouping is not None and not (grouping == "mix" and stage.length_column is not None):
                remedy = "on each of the datasets before mixing them" if grouping == "mix" else f"before {grouping}"
                return (
                    f"{stage.name} comes after {grouping}, whose items have no row numbers by which a survey could "
                    f"know them: use {stage.name} {remedy}"
                )
            if random is not None:
                return (
                    f"{stage.name} comes after {random} with with_rng=True, which makes other rows in every epoch: put "
                    f"{stage.name} first"
                )
        elif stage.count(stage.group_size) is None:
            return stage.why_not_counted
        grouping = grouping or (None if stage.keeps_rows else stage.name)
        random = stage.name if stage.uses_rng else random
    return None


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
    input_columns: tuple[str, ...] | None = None
    """The columns of the item that the function gets; None if it gets the item itself."""
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """More arguments of the function."""
    described: dict[str, Any] = field(init=False, repr=False, compare=False)
    """What is known of the function and its arguments as they were when the stage was made: it may change them."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"{self.stage} needs a function, got {self.function!r}.")
        check_not_async(self.function, self.stage)
        if not isinstance(self.fn_kwargs, Mapping):
            raise TypeError(f"fn_kwargs must be a dict, got a {type(self.fn_kwargs).__name__}.")
        keywords = {name: describe_argument(value) for name, value in sorted(self.fn_kwargs.items())}
        described = {"fn": name_of(self.function, with_arguments=True), "fn_kwargs": keywords}
        object.__setattr__(self, "described", {name: known for name, known in described.items() if known})

    def __call__(self, item: Any, key: int, context: Context, keys: I64 | None = None) -> Any:
        """Call the function. A note on any error names the stage, the function and the row.

        An item that is made of several rows has their ``keys``, of which ``key`` is the first.
        """
        arguments = [item] if self.input_columns is None else self._columns_of(item)
        if self.with_indices:
            arguments.append(key if keys is None else keys.tolist())
        if self.with_rng:
            arguments.append(context.rng(self.salt, key))
        begun = time.perf_counter()
        try:
            return self.function(*arguments, **self.fn_kwargs)
        except Exception as error:
            error.add_note(f"midepoch: in {self.stage}({name_of(self.function)}){context.name_row(self.number, key)}")
            raise
        finally:
            FUNCTIONS.seconds += time.perf_counter() - begun

    def _columns_of(self, item: Any) -> list[Any]:
        try:
            return [item[name] for name in self.input_columns or ()]
        except KeyError as error:
            known = item.schema.names if isinstance(item, pa.RecordBatch) else list(item)
            raise SchemaMismatchError(
                f"input_columns has {error.args[0]!r}, and the item has no such column. It has: {', '.join(known)}."
            ) from None

    def describe(self, **parameters: Any) -> dict[str, Any]:
        """The stage, the function's name and arguments, and the parameters that are set."""
        all_parameters = {
            "with_rng": self.with_rng,
            "with_indices": self.with_indices,
            "input_columns": list(self.input_columns or ()),
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
        function, keywords = self.call.function, self.call.fn_kwargs
        return (partial(function, **keywords) if keywords else function,)

    @property
    def uses_rng(self) -> bool:
        return self.call.with_rng

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None


def check_not_async(function: Callable[..., Any], stage: str) -> None:
    """Raise if calling a user function returns something to await, and not its result."""
    while isinstance(function, partial):
        function = function.func
    called = function, type(function).__call__  # the second for objects
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise TypeError(
            f"{stage} needs a plain function, and {name_of(function)} is async: a call of it has no result until it is "
            "awaited. Wrap it in a function that calls asyncio.run(...). To await many rows at once, let it take "
            "columns and pass batched=True."
        )


def name_of(function: Callable[..., Any], *, with_arguments: bool = False) -> str:
    """A function's qualified name. Its module is left out, as it differs between a script and its workers.

    Surveys, caches and checkpoints know it ``with_arguments`` of partials.
    """
    if isinstance(function, partial):
        arguments = _arguments_of(function) if with_arguments else ""
        inner = name_of(function.func, with_arguments=with_arguments)
        return f"partial({', '.join(filter(None, [inner, arguments]))})"
    if hasattr(function, "__wrapped__"):
        return name_of(function.__wrapped__, with_arguments=with_arguments)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _arguments_of(function: partial[Any]) -> str:
    positional = [repr(describe_argument(value)) for value in function.args]
    keywords = [f"{name}={describe_argument(value)!r}" for name, value in sorted(function.keywords.items())]
    arguments = ", ".join([*positional, *keywords])
    return arguments if len(arguments) <= 2 * LONGEST else f"<arguments {_short_digest(arguments)}>"


def describe_argument(value: Any) -> Any:
    """An argument of a function as JSON has it, or a digest of it. Of an object only its class is known."""
    try:
        plain = _plain(value)
        text = json.dumps(plain, sort_keys=True)
    except (RecursionError, ValueError, TypeError):  # it contains itself, or has keys that cannot be sorted
        return f"<{type(value).__qualname__}>"
    return plain if len(text) <= LONGEST else f"<{type(value).__qualname__} {_short_digest(text)}>"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return f"<{type(value).__qualname__}.{value.name}>"
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else f"<{value}>"  # nan is not equal to itself
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"<{_plain(key)!r}>": _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return {"set": sorted((_plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return f"<bytes {_short_digest(bytes(value))}>"
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return _plain(value.item())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"<array {value.dtype} {list(value.shape)} {_short_digest(value.tobytes())}>"
    name = getattr(value, "__qualname__", None)  # functions and classes have one
    return f"<{name if isinstance(name, str) else type(value).__qualname__}>"


def _short_digest(content: str | bytes) -> str:
    return digest(content.encode() if isinstance(content, str) else content, size=8).hex()
