"""Arrow columns as Python lists, NumPy arrays and torch tensors: the forms in which users get values.

NumPy arrays are views of Arrow's memory where possible. Tensors are copies: Arrow's memory must not be written to.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.errors import MissingExtraError
from midepoch.values.arrow import DTYPES, numbers_of

Form = Literal["python", "numpy", "torch", "arrow"]
FORMS: tuple[Form, ...] = get_args(Form)


def torch_module() -> Any:
    """The torch module, imported when it is first needed. Raises with the install command if it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "The form 'torch'") from error
    return torch


def is_plain_tensor(value: Any) -> bool:
    """True for tensors that are numbers in the processor's memory and nothing else."""
    torch = torch_module()
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg() or value.__dict__)
    )


FIXED_SIZE_LIST = pa.list_(pa.null(), 1).id
LISTS = {pa.list_(pa.null()).id, pa.large_list(pa.null()).id, FIXED_SIZE_LIST}
"""The ids of list types: comparing ids is faster than asking a type what it is."""


TEXTS = {kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())}
"""The ids of types whose values are Python objects in every form but Arrow."""


def arrow_columns(batch: pa.RecordBatch, form: Form) -> Any:
    """A dict of the columns in a form; for "arrow" the record batch itself."""
    if form == "arrow":
        return batch
    make = {"python": to_python, "numpy": to_numpy, "torch": to_torch}[form]
    return {name: make(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def arrow_batches(batch: pa.RecordBatch, size: int, form: Literal["numpy", "torch", "arrow"]) -> Iterator[Any]:
    """``arrow_columns`` of ``size`` rows at a time.

    Columns that convert the same in any slice are converted once and then sliced, which is faster.
    """
    starts = range(0, batch.num_rows, size)
    if form == "arrow":
        return map(batch.slice, starts, repeat(size))
    make, cut = (to_torch, tensor_of) if form == "torch" else (to_numpy, np.asarray)
    columns = [
        (name, column, make) if (array := even_array(column)) is None else (name, array, cut)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return ({name: converted(column[at : at + size]) for name, column, converted in columns} for at in starts)


def to_python(column: pa.Array) -> list[Any]:
    """The list that Arrow's ``to_pylist`` returns; numbers go through NumPy, which is faster."""
    kind = column.type
    is_fast = _is_number(kind) and not pa.types.is_float16(kind) and not column.null_count
    values: list[Any] = numbers_of(column).tolist() if is_fast else column.to_pylist()
    return values


def to_numpy(column: pa.Array) -> Any:
    """A column as an array: a view of Arrow's memory if there are no nulls.

    As in Arrow, null floats become NaN and null times NaT. Other types with nulls become an array of objects with
    None, so that integers stay integers. Lists of equal length become one more dimension. Lists of different lengths,
    and lists with nulls among them, become a list of arrays.
    """
    column = storage(column)
    kind = column.type
    if _is_number(kind) and not column.null_count:
        return numbers_of(column)
    if pa.types.is_boolean(kind) or _is_number(kind):
        as_objects = column.null_count and not pa.types.is_floating(kind)
        return object_array(column.to_pylist()) if as_objects else column.to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        return column.to_numpy(zero_copy_only=False)
    if is_list(kind):
        return row_values(column, "numpy") if column.null_count else _list_to_numpy(column)
    return object_array(column.to_pylist())


def to_torch(column: pa.Array) -> Any:
    """Numbers as a tensor, ragged lists of numbers as a list of tensors, everything else as a list.

    A null is None, in a list of Python values or of tensors. It is never NaN, which a loss would become too.
    """
    if column.type.id in TEXTS:
        return column.to_pylist()
    array = to_numpy(column)
    return _tensors_of(array) if _holds_arrays_only(array) and not _has_null_numbers(column) else column.to_pylist()


def row_values(column: pa.Array, form: Form) -> Any:
    """The values of a column one by one, each converted as if it were alone.

    How a row looks must not depend on its neighbours, because they are different after a resume: an integer next to a
    null has the same type as an integer next to an integer.
    """
    if form == "python":
        return to_python(column)
    make = to_torch if form == "torch" else to_numpy
    if _converts_alone(column, form):
        return make(column)
    column = storage(column)
    if column.null_count:
        present = iter(row_values(column.drop_null(), form))
        return [next(present) if valid else None for valid in column.is_valid().to_pylist()]
    return [make(scalar.values) for scalar in column]


def even_array(column: pa.Array) -> npt.NDArray[Any] | None:
    """A view of a column of numbers, or of equally long lists of numbers, without nulls; None for other columns.

    Any slice of the view equals ``to_numpy`` of that slice of the column.
    """
    return to_numpy(column) if _is_even(column) else None


def tensor_of(array: Any) -> Any:
    """A tensor with a copy of an array of numbers; anything else is returned unchanged."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return array
    return torch_module().from_numpy(array.copy())


def object_array(values: Any) -> Any:
    """A NumPy array of Python objects."""
    return np.fromiter(values, object, len(values))


def is_list(kind: pa.DataType) -> bool:
    """True for Arrow's list, large list and fixed-size list types."""
    return kind.id in LISTS


def storage(column: pa.Array) -> pa.Array:
    """The column with extension types and dictionaries replaced by the values that they hold."""
    if isinstance(column, pa.ExtensionArray):
        return storage(column.storage)
    return storage(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column


def _is_number(kind: pa.DataType) -> bool:
    return kind.id in DTYPES


def _is_even(column: pa.Array) -> bool:
    if isinstance(column, pa.ExtensionArray):
        return _is_even(column.storage)
    kind = column.type
    if column.null_count or not is_list(kind):
        return _is_number(kind) and not column.null_count
    if not pa.types.is_fixed_size_list(kind):
        lengths = numbers_of(column.value_lengths())
        if not len(lengths) or (lengths != lengths[0]).any():
            return False
    return _is_even(column.flatten())


def _converts_alone(column: pa.Array, form: Form) -> bool:
    """True if each value converts the same alone as within the column."""
    column = storage(column)
    kind = column.type
    if is_list(kind):
        even = pa.types.is_fixed_size_list(kind) or not is_list(kind.value_type)
        return even and not column.null_count and _converts_alone(column.flatten(), form)
    is_nan = form == "numpy" and pa.types.is_floating(kind)
    return not column.null_count or is_nan or not (pa.types.is_boolean(kind) or _is_number(kind))


def _has_null_numbers(column: pa.Array) -> bool:
    """True if a number of the column, or of its lists, is null."""
    column = storage(column)
    return _has_null_numbers(column.flatten()) if is_list(column.type) else bool(column.null_count)


def _list_to_numpy(column: pa.Array) -> Any:
    """Lists without nulls among them: a matrix if they are equally long, else a list of arrays."""
    if pa.types.is_fixed_size_list(column.type):
        length = column.type.list_size
        values = to_numpy(column.values.slice(column.offset * length, len(column) * length))
        if isinstance(values, np.ndarray):
            return values.reshape(len(column), length, *values.shape[1:])
        if not length:
            return [[] for _ in column]
        return [values[start : start + length] for start in range(0, len(values), length)]
    values = to_numpy(column.flatten())
    ends = np.concatenate([[0], np.cumsum(numbers_of(column.value_lengths()))])
    lengths = np.diff(ends)
    if isinstance(values, np.ndarray) and len(lengths) and (lengths == lengths[0]).all():
        return values.reshape(len(column), int(lengths[0]), *values.shape[1:])
    return [values[start:stop] for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _holds_arrays_only(column: Any) -> bool:
    """True for an array of numbers, and for a list of such arrays and None."""
    if isinstance(column, list):
        return all(value is None or _holds_arrays_only(value) for value in column)
    return isinstance(column, np.ndarray) and column.dtype.kind in "biuf"


def _tensors_of(column: Any) -> Any:
    return [_tensors_of(value) for value in column] if isinstance(column, list) else tensor_of(column)
