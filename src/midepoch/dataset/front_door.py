"""The base of datasets with methods of their own: type checkers keep their class through every method.

What such a dataset yields is not part of its type, because Python has no way to write that a method changes one and
keeps the other.
"""

from typing import TYPE_CHECKING, Any, Self

from midepoch.dataset.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from midepoch.dataset.signatures import AnyForm

    class FrontDoor(Dataset[Any]):
        """A Dataset that stays what it is."""

        def map(  # noqa: D102
            self,
            function: Callable[..., Any],
            *,
            batched: bool = False,
            batch_size: int | None = 1000,
            drop_last_batch: bool = False,
            one_to_one: bool = False,
            with_rng: bool = False,
            with_indices: bool = False,
            remove_columns: Sequence[str] | str | None = None,
            input_columns: Sequence[str] | str | None = None,
            fn_kwargs: Mapping[str, Any] | None = None,
            version: str | int | None = None,
        ) -> Self: ...

        def with_format(self, type: AnyForm | None = None) -> Self: ...  # noqa: D102

else:
    FrontDoor = Dataset
