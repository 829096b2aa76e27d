"""A pack, made of the pieces of documents that it holds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from midepoch._common.types import I32
from midepoch.stages.flow import Flow
from midepoch.stages.pack.documents import Values
from midepoch.stages.pack.spec import IGNORED, PackSpec
from midepoch.stages.pack.strategies import ids_within
from midepoch.values.forms import Form
from midepoch.values.rows import convert_item


def make_pack(pieces: Mapping[str, Sequence[Values]], ends: I32, spec: PackSpec, form: Form) -> dict[str, Any]:
    """A pack in its own memory: the pieces of each column joined and padded, and where each piece begins and ends."""
    real = int(ends[-1])
    total = real if spec.pad is None else max(real, spec.length)
    item: dict[str, Any] = {}
    for name, arrays in pieces.items():
        values = np.empty(total, arrays[0].dtype)
        np.concatenate(arrays, out=values[:real])
        if total > real:
            values[real:] = spec.pad if name == spec.column else IGNORED if name == "labels" else 0
        item[name] = values
    item["position_ids"], item["document_ids"] = ids_within(ends, total)
    item["cu_seqlens"] = ends
    converted: dict[str, Any] = convert_item(item, form) if form == "torch" else item
    return converted


def pack_form(inputs: Flow) -> Form:
    """Packs hold tensors where the inputs do, else arrays."""
    return "torch" if inputs.form == "torch" else "numpy"
