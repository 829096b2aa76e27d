"""Files that name the shards of a dataset, in their order: index.json of MosaicML Streaming, and the index of wids."""

import json
import logging
import posixpath
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from midepoch._common.checks import count
from midepoch.errors import DataFormatError, NoDataError, NotAllowedError

log = logging.getLogger("midepoch")

INDEX = "index.json"
MDS = re.compile(r"\.mds(\.\w+)?$")
MANIFEST = re.compile(
    rb'\s*\{\s*("version"\s*:\s*2\s*,\s*)?"shards"\s*:\s*\[|\s*\{[^{]*"__kind__"\s*:\s*"wids-shard-index'
)
"""How such a file begins. JSON files of rows do not."""
HEAD_BYTES = 4096


class ShardFile(NamedTuple):
    """A name of a shard, below the folder of the file that names it, and the bytes of the shard if they are known."""

    name: str
    size: int | None


def mds_shards(paths: Collection[str], read: Callable[[str], bytes], size_of: Callable[[str], int | None]) -> list[str]:
    """The shards among the files below a folder, as index.json there or in subfolders names them."""
    indexes = sorted(
        (path for path in paths if posixpath.basename(path) == INDEX), key=lambda path: path.split("/")[:-1]
    )
    stored = {path for path in paths if MDS.search(path)}
    shards: list[str] = []
    above: list[str] = []
    for index in indexes if stored else ():
        folder = index.removesuffix(INDEX)
        if not folder.startswith(tuple(above)):  # else a merged index names these shards too
            above.append(folder)
            shards += shards_of(index, read(index), lambda path: size_of(path) if path in stored else None)
    left_out = {MDS.sub("", path) for path in stored} - {MDS.sub("", path) for path in shards}
    if shards and left_out:
        number = count("shard is", len(left_out), "shards are")
        log.warning("%s not read, such as %s.mds: no %s names them.", number, min(left_out), INDEX)
    return shards


def shards_of(index: str, content: bytes, size_of: Callable[[str], int | None]) -> list[str]:
    """The paths of the shards that an index names. Raises if one is missing, or has other bytes than it says."""
    folder, found = index[: index.rfind("/") + 1], []
    for files in _named(index, content):
        sizes = [(file, size_of(folder + file.name)) for file in files]
        present = next(((file, size) for file, size in sizes if size is not None), None)
        if present is None:
            raise NoDataError(
                f"{index} names the shard {files[0].name}, which is not in its folder. Copy it there, or list the "
                "shards that are to be read."
            )
        file, size = present
        if file.size not in (None, size):
            raise DataFormatError(
                f"{folder}{file.name} has {size:,} bytes, and {index} says {file.size:,}: it is cut short, or of "
                "another dataset. Copy it again."
            )
        found.append(folder + file.name)
    return found


def candidates(index: str, content: bytes) -> list[str]:
    """All paths that the shards of an index can have."""
    return [index[: index.rfind("/") + 1] + file.name for files in _named(index, content) for file in files]


def _named(index: str, content: bytes) -> list[list[ShardFile]]:
    """For each shard, the files that it can be: raw, or compressed."""
    try:
        parsed = json.loads(content)
        if "shardlist" in parsed:
            shards = [[ShardFile(one["url"], one.get("filesize"))] for one in parsed["shardlist"]]
        else:
            stored = ([one[kind] for kind in ("raw_data", "zip_data") if one.get(kind)] for one in parsed["shards"])
            shards = [[ShardFile(one["basename"], one["bytes"]) for one in files] for files in stored]
        if not all(shards):
            raise ValueError("a shard without a file")
        names = [posixpath.normpath(file.name) for files in shards for file in files]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataFormatError(
            f"{index} does not name the shards of a dataset ({type(error).__name__}: {error}). It is damaged, or of "
            "another format: copy it again, or list the shards."
        ) from error
    for name in names:
        if name.startswith(("/", "..")) or ":" in name or "\\" in name:
            raise NotAllowedError(
                f"{index} names {name!r}, which is not below its folder. If it is trusted, list the shards yourself."
            )
    return shards
