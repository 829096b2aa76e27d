"""Files that midepoch does not read, and what to do with them, recognised by their names."""

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
TAR = (
    re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE),
    "tar files, as WebDataset writes them",
    "Copy their samples to Parquet once, or read them in place by midepoch.from_indexable(samples): "
    "docs/coming-from.md shows both",
)
IMAGES = (
    re.compile(r"\.(jpe?g|png|webp|gif|bmp|tiff?)$", re.IGNORECASE),
    "images",
    "Read them in place by midepoch.from_indexable(torchvision.datasets.ImageFolder(folder)), or copy them to Parquet "
    "once: docs/coming-from.md shows both",
)
"""The names of files, what such files are, and what there is for them."""


def foreign_layout(names: Iterable[str]) -> str | None:
    """Which other library wrote a folder with these files, and what to do; None if none is recognised."""
    names = list(names)
    pattern, what, advice = TAR
    if any(map(pattern.search, names)):
        return f"It has {what}. {advice}"
    if not any(map(INDEX.search, names)):
        return None
    for pattern, library, opened in LAYOUTS:
        if any(map(pattern.search, names)):
            return (
                f"It is a dataset of {library}, whose files midepoch does not read. Read the files that it was made "
                f"from, or let that library fetch its rows: midepoch.from_indexable({opened})"
            )
    return None


def unread_kind(names: Iterable[str]) -> tuple[str, str] | None:
    """What files with these names are, and what there is for them; None if they are not recognised."""
    names = list(names)
    return next(((what, advice) for pattern, what, advice in (TAR, IMAGES) if any(map(pattern.search, names))), None)
