"""``index``, ``head``, ``survey`` and ``cache``: what files hold, and what is prepared from them."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from midepoch._common.checks import count, size_in_words
from midepoch.cli.main import Answer, table
from midepoch.dataset import Dataset, file_rows, with_order_step
from midepoch.dataset.read import read
from midepoch.index.saved import clean, index_folder
from midepoch.order.orders import Slice


def open_dataset(
    paths: Sequence[str],
    *,
    pipeline: str | None = None,
    shuffle: int | None = None,
    rows: int | None = None,
    first: int = 0,
) -> Dataset:
    """Files, shuffled by a seed, with the stages that the user's function adds.

    Only the first ``rows`` rows of the files are used, and only the rows of the final order from ``first`` on.
    """
    dataset = read(list(paths))
    if rows is not None:
        dataset = dataset.take(rows)
    if shuffle is not None:
        dataset = dataset.shuffle(seed=shuffle)
    if pipeline is not None:
        dataset = _built_by(pipeline, dataset)
    return with_order_step(dataset, "--at", Slice(start=first, stop=None)) if first else dataset


def _built_by(pipeline: str, dataset: Dataset) -> Dataset:
    """The dataset with the stages that the user's function adds."""
    function = user_function(pipeline)
    try:
        built = function(dataset)
    except Exception as error:
        error.add_note(f"in {pipeline}, which gets the dataset of the files")
        raise
    if not isinstance(built, Dataset):
        raise ValueError(
            f"{pipeline} returned {type(built).__name__}. It gets the dataset of the files and must return one with "
            "stages added, such as dataset.shuffle(seed=42).map(tokenize)."
        )
    return built


def user_function(name: str, option: str = "--pipeline", example: str = "train:pipeline") -> Callable[..., Any]:
    """The function that "module:function" names. Modules are also looked for in the working directory."""
    module, _, function = name.partition(":")
    if not module or not function or module.startswith("."):
        raise ValueError(f"{option} is {name!r}; write it as module:function, such as {example}.")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option} {name}: {error}. Install it, or start the command in the folder that has it."
        ) from error
    except Exception as error:
        error.add_note(f"while {module} was imported for {option} {name}")
        raise
    if not callable(found):
        raise ValueError(f"{option} {name}: {function} is no function of {sys.modules[module].__file__ or module}.")
    return found  # type: ignore[no-any-return]


def index(arguments: Namespace) -> Answer:
    """Build the index of files, and say what they hold; or remove indexes that nobody uses."""
    if bool(arguments.data) == (arguments.clean is not None):
        raise ValueError(
            "index needs files, folders, globs or URLs, or --clean, which removes indexes that nobody uses, of all "
            "files. Leave the paths out with --clean."
        )
    if arguments.clean is not None:
        folder = index_folder(None)
        removed, size = clean(folder, days=arguments.clean)
        line = f"{count('index', removed, 'indexes')}, {size_in_words(size)}, removed from {folder}"
        return Answer(value={"folder": str(folder), "removed": removed, "bytes": size}, lines=[line])
    start = time.perf_counter()
    rows = file_rows(open_dataset(arguments.data), "index")
    view, size = rows.index.view, sum(stamp.size for stamp in rows.index.view.stamps)
    taken = time.perf_counter() - start
    formats = sorted(set(view.formats))
    value = {
        "files": len(view.names),
        "rows": view.rows,
        "blocks": len(view.block_rows),
        "bytes": size,
        "formats": formats,
        "columns": {field.name: str(field.type) for field in rows.schema},
        "saved_at": view.saved_at,
        "seconds": round(taken, 3),
    }
    lines = [
        f"{count('row', view.rows)} in {count('file', len(view.names))} ({', '.join(formats)}), "
        f"{count('block', len(view.block_rows))}, {size_in_words(size)}, in {taken:.2f} s",
        *table([{"column": field.name, "type": str(field.type)} for field in rows.schema]),
    ]
    return Answer(value=value, lines=lines)


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
    reason = surveyed.why_not_counted()
    if reason is not None:
        return Answer(value={"counted": False, "reason": reason}, lines=[reason], good=False)
    items = len(surveyed)
    return Answer(value={"counted": True, "items": items}, lines=[f"counted: {count('item', items)} in epoch 0"])


def cache(arguments: Namespace) -> Answer:
    """Make all rows once, as Arrow files in a folder."""
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline)
    rows = file_rows(dataset.cache(arguments.folder, version=arguments.version), "cache").size
    value = {"folder": str(arguments.folder), "rows": rows}
    return Answer(value=value, lines=[f"{count('row', rows)} in {arguments.folder}; read them from there"])
