"""``index``, ``head``, ``survey`` and ``cache``: what files hold, and what is prepared from them."""

import time
from argparse import Namespace
from typing import Any

from midepoch._common.text import count, size_in_words
from midepoch.cli.datasets import open_dataset
from midepoch.cli.output import Answer, table
from midepoch.dataset import Dataset
from midepoch.index.saved import clean, index_folder


def index(arguments: Namespace) -> Answer:
    """Build the index of files, and say what they hold; or remove indexes that nobody uses."""
    if arguments.clean is not None:
        if arguments.data:
            raise ValueError("index --clean removes indexes that nobody uses, of all files. Leave the paths out.")
        return _cleaned(arguments.clean)
    if not arguments.data:
        raise ValueError("index needs files, folders, globs or URLs, or --clean.")
    start = time.perf_counter()
    rows = open_dataset(arguments.data).file_rows("index")
    view = rows.index.view
    taken = time.perf_counter() - start
    value = {
        "files": len(view.names),
        "rows": view.rows,
        "blocks": len(view.block_rows),
        "bytes": sum(stamp.size for stamp in view.stamps),
        "formats": sorted(set(view.formats)),
        "columns": {field.name: str(field.type) for field in rows.schema},
        "saved_at": view.saved_at,
        "seconds": round(taken, 3),
    }
    lines = [
        f"{count('row', view.rows)} in {count('file', len(view.names))} ({', '.join(value['formats'])}), "  # type: ignore[arg-type]
        f"{count('block', len(view.block_rows))}, {size_in_words(int(str(value['bytes'])))}, in {taken:.2f} s",
        *table([{"column": field.name, "type": str(field.type)} for field in rows.schema]),
    ]
    return Answer(value=value, lines=lines)


def _cleaned(days: float) -> Answer:
    folder = index_folder(None)
    removed, size = clean(folder, days=days)
    value = {"folder": str(folder), "removed": removed, "bytes": size}
    what = f"{count('index', removed, 'indexes')}, {size_in_words(size)}"
    return Answer(value=value, lines=[f"{what}, removed from {folder}"])


def head(arguments: Namespace) -> Answer:
    """The first items, or those from a position of the order on."""
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline, shuffle=arguments.shuffle, first=arguments.at)
    dataset.set_epoch(arguments.epoch)
    items = dataset.head(arguments.n)
    are_rows = all(isinstance(item, dict) for item in items)
    return Answer(value=items, lines=(table(items) if are_rows else list(map(repr, items))) or ["no items"])


def survey(arguments: Namespace) -> Answer:
    """Count what filters and packs make of each row, once."""
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline)
    surveyed = dataset.survey(folder=arguments.folder, version=arguments.version)
    return _counted(surveyed)


def cache(arguments: Namespace) -> Answer:
    """Make all rows once, as Arrow files in a folder."""
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline)
    cached = dataset.cache(arguments.folder, version=arguments.version)
    value: dict[str, Any] = {"folder": str(arguments.folder), "rows": cached.file_rows("cache").size}
    return Answer(value=value, lines=[f"{count('row', value['rows'])} in {value['folder']}; read them from there"])


def _counted(dataset: Dataset) -> Answer:
    reason = dataset.why_not_counted()
    if reason is not None:
        return Answer(value={"counted": False, "reason": reason}, lines=[reason], good=False)
    items = len(dataset)
    return Answer(value={"counted": True, "items": items}, lines=[f"counted: {count('item', items)} in epoch 0"])
