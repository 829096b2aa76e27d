"""Items as objects of pandas, polars or jax. Until they are delivered they stay Arrow, or NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.arguments import WithLibrary
from midepoch.stages.flow import Context, Flow
from midepoch.stages.stage import Stage
from midepoch.values.frames import Library, to_library


@dataclass(frozen=True, slots=True, kw_only=True)
class ToLibrary(Stage):
    """Turn each item into an object of a library. It is always the last stage: others come before it."""

    library: Library
    name = "with_format"
    comes_last: ClassVar[bool] = True

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        library = self.library
        items = ((to_library(item, library), cursor, key) for item, cursor, key in inputs.as_single_items())
        return inputs.with_single_items(items)

    def adapted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return WithLibrary(function, self.library)
