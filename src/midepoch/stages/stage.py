"""What a stage is, and the user functions that some of them call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.flow import Context, Flow


class Stage(Protocol):
    """One step of a pipeline, as it was asked for."""

    many_outputs: ClassVar[bool]
    """Whether a group can have several outputs, so that the cursor needs one number more."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The outputs from ``cursor`` on; the inputs were opened there, less this stage's own number."""

    def count(self, inputs: int) -> int | None:
        """How many outputs so many inputs give, or None where only reading them tells."""

    def describe(self) -> dict[str, Any] | None:
        """What a state remembers of the stage, or None where a change of it changes no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A user's function, and how a stage calls it."""

    function: Callable[..., Any]
    stage: str
    number: int
    with_rng: bool = False
    salt: int = 0
    """What keeps the random numbers of several functions apart: it counts stages that change rows, no others."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"{self.stage} needs a function, got {self.function!r}.")

    def __call__(self, item: Any, key: int, context: Context) -> Any:
        """Call the function; an error that it raises is given the row at which it did."""
        try:
            return self.function(item, context.rng(self.salt, key)) if self.with_rng else self.function(item)
        except Exception as error:
            error.add_note(f"midepoch: in {self.stage}({name_of(self.function)}){context.name_row(self.number, key)}")
            raise

    def describe(self, **parameters: Any) -> dict[str, Any]:
        """The stage, the function's name, and the parameters that are not what they are by default."""
        told = {"with_rng": self.with_rng, **parameters}
        return {"op": self.stage, "fn": name_of(self.function)} | {key: value for key, value in told.items() if value}


def name_of_stage(stage: Stage) -> str:
    """What users call a stage."""
    return str((stage.describe() or {"op": type(stage).__name__.lower()})["op"])


def name_of(function: Callable[..., Any]) -> str:
    """A function's qualified name, without its module: that differs between a script and its workers."""
    if isinstance(function, partial):
        return f"partial({name_of(function.func)})"
    if hasattr(function, "__wrapped__"):
        return name_of(function.__wrapped__)
    return str(getattr(function, "__qualname__", type(function).__qualname__))
