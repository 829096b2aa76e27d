"""A folder of images with a subfolder for each class. In its index, a class is a file, and an image is a block."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from midepoch._common.checks import Size, count, log_once, options_among
from midepoch._common.hashing import digest
from midepoch.dataset import from_source
from midepoch.dataset.read import ReadOptions
from midepoch.errors import DataFormatError, NoDataError
from midepoch.extending import FrontDoor
from midepoch.formats import Block, BlockReader, Scan
from midepoch.index.index import Index, IndexView
from midepoch.index.schemas import schema_of
from midepoch.index.tables import MadeBlocks
from midepoch.sources.files import FileRows
from midepoch.storage.block_cache import CACHE
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp, check_unchanged
from midepoch.storage.objects import StoredFile
from midepoch.storage.urls import folder_prefix, is_url
from midepoch.values.media import Decoder

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class ImageFolder(FrontDoor):
    """The rows of a folder of images."""

    class_names: tuple[str, ...]
    """The names of the classes: label ``n`` is the class ``class_names[n]``."""
    _bound_to_files = True


def image_folder(
    folder: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    decoder: Decoder | None = "pillow",
    size: int | Sequence[int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read_ahead: Size | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: Size = CACHE,
    trust_shared: bool = False,
    shared_listing: bool = False,
) -> ImageFolder:
    """Open a folder of images that has a subfolder for each class, as torchvision's ``ImageFolder`` does.

        dataset = midepoch.image_folder("images/train").shuffle(seed=42)

    Rows have the columns "image", "label" and "path". Labels count the subfolders of ``folder``, a path or a URL of a
    store, sorted by name: ``dataset.class_names`` has these names. Images may lie deeper, and paths begin with the
    class. ``class_names`` sets the names and their order, for a folder that lacks some classes of another one:

        validation = midepoch.image_folder("images/val", class_names=dataset.class_names)

    Images are decoded to RGB in the process that reads the rows, by ``decoder`` and to ``size``, as
    :meth:`midepoch.Dataset.decode` does. With ``decoder=None`` a row has {"bytes", "path"}. ``storage_options``,
    ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``trust_shared`` and ``shared_listing`` are those of
    :func:`midepoch.read`.

    The folder is listed at every start, and nothing is read from its files. Each image is read when its row is. A
    changed image raises :class:`midepoch.DataChangedError`.
    """
    options = ReadOptions(**options_among(ReadOptions, locals()))
    # All files are listed, so that a class without images is noticed.
    listing = options.find(os.fspath(folder), ("",))
    images, others = _classes(listing)
    names = sorted(images) if class_names is None else list(class_names)
    _check_classes(listing.root, images, names)
    if others:
        log_once(
            f"{listing.root} has {count('file', len(others))} that are no images by their names, such as {others[0]}. "
            "They are not read."
        )
    dataset = from_source(FileRows(index=ImageIndex(listing, images, names), fetch=options.fetch), ImageFolder)
    dataset.class_names = tuple(names)
    return dataset if decoder is None else dataset.decode("image", decoder=decoder, size=size)


def _classes(listing: Listing) -> tuple[dict[str, list[int]], list[str]]:
    """The numbers of the images of each class, and the files that are no images. Raises for what has no class."""
    images: dict[str, list[int]] = {}
    others: list[str] = []
    if not is_url(listing.root):
        with os.scandir(listing.root) as entries:
            images = {entry.name: [] for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    for number, name in enumerate(listing.names):
        label, is_below, _ = name.partition("/")
        of_class = images.setdefault(label, []) if is_below else None
        if not name.lower().endswith(SUFFIXES):
            others.append(name)
        elif of_class is None:
            raise NoDataError(
                f"{name} lies in {listing.root} itself, so it has no class. Move it into a subfolder that is named as "
                "its class. For images without labels, make one subfolder for all of them."
            )
        elif not listing.stamps[number].size:
            raise DataFormatError(f"{folder_prefix(listing.root)}{name} is empty. Restore it, or delete it.")
        else:
            of_class.append(number)
    return images, others


def _check_classes(root: str, images: Mapping[str, Sequence[int]], names: Sequence[str]) -> None:
    if not any(images.values()):
        raise NoDataError(
            f"The folder {root} has no images in subfolders ({', '.join(SUFFIXES)}). Pass a folder that has a "
            "subfolder for each class."
        )
    if set(images) <= SPLITS:
        raise NoDataError(
            f"The subfolders of {root} are {', '.join(sorted(images))}: splits, not classes. Open one of them: "
            f"image_folder({folder_prefix(root) + max(images)!r})."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"class_names has a name twice: {names}.")
    for name, numbers in images.items():
        if name not in names:
            raise NoDataError(
                f"The folder {folder_prefix(root)}{name} is a class that class_names does not have. Add {name!r} to "
                "class_names, or move the folder elsewhere."
            )
        if not numbers:
            raise NoDataError(
                f"The folder {folder_prefix(root)}{name} has no images ({', '.join(SUFFIXES)}; names that begin with _ "
                "or . are left out). Add images, or remove the folder: it would be a class that no row has."
            )


class ImageIndex(Index):
    """The images of a folder, by class. Opening one says nothing of it but its name, size and version."""

    def __init__(self, listing: Listing, images: Mapping[str, Sequence[int]], names: Sequence[str]) -> None:
        """Take the numbers of the images of each class, and the names of classes by label."""
        features = {
            "image": {"_type": "Image", "mode": "RGB"},
            "label": {"_type": "ClassLabel", "names": list(names)},
        }
        schema = pa.schema(
            [("image", IMAGE), ("label", pa.int64()), ("path", pa.string())],
            {"huggingface": json.dumps({"info": {"features": features}})},
        )
        scans, stamps, kept = [], [], []
        for label in sorted(images):
            of_class = [(listing.names[number], listing.stamps[number]) for number in images[label]]
            version = digest(repr(of_class).encode()).hex()  # another one if any image of the class has changed
            scans.append(Scan("arrow", schema, [(0, stamp.size, 1) for _, stamp in of_class], version=version))
            stamps.append(FileStamp(sum(stamp.size for _, stamp in of_class), 0))
            kept += of_class
        self.view = IndexView.of(Listing(listing.spec, listing.root, tuple(sorted(images)), tuple(stamps)), scans)
        self.store, self.class_names = listing.store, tuple(names)
        self.layout = {
            "images": digest(repr([(name, stamp.size) for name, stamp in kept]).encode()).hex(),
            "classes": digest(repr(list(names)).encode()).hex(),
        }
        times, versions = [stamp.mtime_ns for _, stamp in kept], [stamp.version for _, stamp in kept]
        self.images = pa.table({"name": [name for name, _ in kept], "mtime_ns": times, "version": versions})
        """The name, time of change and listed version of each image, in the order of the blocks."""

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of these columns, or of all three."""
        return schema_of(self.view, columns)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        """The images of a class."""
        label, first = self.class_names.index(self.view.names[file]), int(self.view.first_blocks[file])

        def read(block: Block) -> pa.RecordBatch:
            number = first + block.number
            path = self.images["name"][number].as_py()
            row: dict[str, Any] = {"label": label, "path": path}
            if "image" in wanted.names:
                row["image"] = {"bytes": self._content(number, path, block.length), "path": path}
            return pa.RecordBatch.from_pylist([row], schema=wanted)

        return MadeBlocks(read)

    def _content(self, number: int, name: str, size: int) -> Any:
        """The bytes of an image, of the version that was listed."""
        path = folder_prefix(self.view.root) + name
        if self.store is not None:
            listed = self.images["version"][number].as_py()
            version = listed if listed.startswith('"') else None  # other texts may be of the listing alone
            return StoredFile(self.store, path, size=size, version=version).buffer_at(size, 0).to_pybytes()
        stamp = FileStamp(size, self.images["mtime_ns"][number].as_py())
        try:
            with open(path, "rb") as file:
                return file.read(size)
        except OSError as error:
            raise NoDataError(f"{path} cannot be read: {error.strerror or error}.") from error
        finally:
            check_unchanged(path, stamp)
