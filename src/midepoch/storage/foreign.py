"""Folders that other libraries wrote in formats of their own, recognised by the names of their files."""

import re
from collections.abc import Iterable

LAYOUTS = (
    (
        re.compile(r"\.mds(\.\w+)?$"),
        "MosaicML Streaming (MDS)",
        "streaming.StreamingDataset(local=folder, batch_size=1)",
    ),
    (re.compile(r"(^|/)chunk-\d+-\d+(\.\w+)*\.bin$"), "LitData", "litdata.StreamingDataset(folder)"),
)
INDEX = re.compile(r"(^|/)index\.json$")
TAR = re.compile(r"\.tar(\.\w+)?$")


def foreign_layout(names: Iterable[str]) -> str | None:
    """Which other library wrote a folder with these files, and what to do; None if none is recognised."""
    names = list(names)
    if any(map(TAR.search, names)):
        return (
            "It has tar files, as WebDataset writes them, which midepoch does not read. Read the files that they were "
            "made from, or convert them to Parquet once: docs/coming-from.md shows how"
        )
    if not any(map(INDEX.search, names)):
        return None
    for pattern, library, opened in LAYOUTS:
        if any(map(pattern.search, names)):
            return (
                f"It is a dataset of {library}, whose files midepoch does not read. Read the files that it was made "
                f"from, or let that library fetch its rows: midepoch.from_indexable({opened})"
            )
    return None
