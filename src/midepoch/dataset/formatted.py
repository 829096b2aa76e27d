"""The methods of a dataset that say in which form its values come: as Python, NumPy, torch or Arrow, and decoded."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import pyarrow as pa

from midepoch._common.checks import Size
from midepoch.dataset.planned import Item
from midepoch.dataset.signatures import AnyForm, ArrowForm, DictForm, OfRows
from midepoch.dataset.table import TableDataset
from midepoch.stages.columns import Convert
from midepoch.stages.functions import Map
from midepoch.storage.named_files import MAX_FILE_BYTES, NamedFiles
from midepoch.values.features import features_of
from midepoch.values.forms import FORMS, Form, torch_module
from midepoch.values.images import Decoder, ImageDecoder, checked_size
from midepoch.values.media import Decode, to_decode

if TYPE_CHECKING:
    from midepoch.dataset.dataset import Dataset

SHORT_FORMS: dict[Any, Form] = {
    **{None: "python", "np": "numpy", "pt": "torch", "pytorch": "torch", "pa": "arrow", "pyarrow": "arrow"},
}
TO_PANDAS = 'Use with_format("arrow"), and batch.to_pandas() where you need a frame'
TO_POLARS = 'Use with_format("arrow"), and polars.from_arrow(batch) where you need a frame'
TO_JAX = 'Use with_format("numpy"), and jax.numpy.asarray(...) where you need an array'
INSTEAD = {"pandas": TO_PANDAS, "pd": TO_PANDAS, "polars": TO_POLARS, "pl": TO_POLARS, "jax": TO_JAX}
"""What to do for formats of `datasets` that are not here."""


class FormattedDataset(TableDataset[Item]):
    """A plan whose values are converted. :class:`midepoch.Dataset` adds the methods that make other items."""

    @overload
    def with_format(self: OfRows, type: DictForm | None = None) -> OfRows: ...  # type: ignore[overload-overlap]

    @overload
    def with_format(self, type: DictForm | None = None) -> "Dataset": ...

    @overload
    def with_format(self, type: ArrowForm) -> "Dataset[pa.RecordBatch]": ...

    def with_format(self, type: AnyForm | None = None) -> Any:
        """Yield "python", "numpy" or "torch" values, or Arrow record batches ("arrow"), from this stage on.

            dataset = midepoch.read("data/*.parquet", columns=["x"]).with_format("torch").batch(32)

        ``type`` is one of these names; None is "python". The short names of `datasets` are known too: "np", "pt",
        "pytorch", "pa" and "pyarrow". For pandas, polars and jax convert a batch: ``batch.to_pandas()`` and
        ``polars.from_arrow(batch)`` take batches of "arrow", ``jax.numpy.asarray(...)`` takes arrays of "numpy".
        """
        form: Any = SHORT_FORMS.get(type, type)
        if form not in FORMS:
            instead = f" {INSTEAD[form]}." if form in INSTEAD else ""
            raise ValueError(f"The format is {type!r}; it can be {', '.join(map(repr, FORMS))}.{instead}")
        if form == "torch":
            torch_module()
        return self.with_stage(Convert(form=form))

    def decode(
        self,
        *columns: str,
        decoder: Decoder = "pillow",
        size: int | Sequence[int] | None = None,
        data_folder: str | os.PathLike[str] | None = None,
        allow_urls: Iterable[str] = (),
        max_file_bytes: Size = MAX_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Decode images to PIL images and audio to arrays, in the process that reads the rows.

            pictures = midepoch.read("pictures.parquet").decode("picture")

        ``columns`` are names, or the kinds "image" and "audio"; by default all Image and Audio features are decoded.
        Without ``decode`` they stay bytes. Needs ``midepoch[image]`` or ``midepoch[audio]``.

        ``decoder="turbo"`` gives images as arrays of bytes, (height, width, 3), and decodes JPEG files about twice as
        fast, by libjpeg-turbo; Pillow decodes the others. Needs ``midepoch[jpeg]``, and torch with a ``size``. With
        ``size``, a number of pixels or a pair of height and width, all images are resized to it, without keeping their
        proportions. Both are part of a state, because they change pixels.

            arrays = midepoch.read("pictures.parquet").decode("picture", decoder="turbo", size=224)

        Most datasets hold the bytes of their files. Rows may also name regular files in ``data_folder``, which can be
        the URL of an object store, and URLs of the origins in ``allow_urls``, such as "https://example.com". Each has
        at most ``max_file_bytes``. ``storage_options`` are those of the folder's store.
        """
        pipeline = self.plan.pipeline
        if (resizing := pipeline.first_resizing) is not None:
            raise ValueError(f"decode after {resizing} is not possible: it works on single rows. Put decode first.")
        files = NamedFiles(
            data_folder, allow_urls=allow_urls, max_file_bytes=max_file_bytes, storage_options=storage_options
        )
        images = ImageDecoder(decoder=decoder, size=checked_size(size))
        features = to_decode(self.schema, features_of(self.schema), columns)
        function = Decode(features=features, files=files, images=images)
        return self.with_stage(Map(call=pipeline.call("decode", function), parameters=images.describe()))
