"""Tar files for tests, and what WebDataset makes of them."""

import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> Path:
    """A tar file of these files. A name that ends with a slash is a folder, and "a -> b" a hard link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            link, arrow, target = name.partition(" -> ")
            member = tarfile.TarInfo(link if arrow else name)
            member.size, member.linkname, member.mtime = len(content), target, 1.5
            if arrow or name.endswith("/"):
                member.type = tarfile.LNKTYPE if arrow else tarfile.DIRTYPE
            tar.addfile(member, io.BytesIO(content))
    return path


def numbered_tar(path: Path, first: int, last: int, nbytes: int = 20) -> Path:
    """A tar file of samples with an id and a text of about so many bytes, of which every fifth has none."""
    members: list[tuple[str, bytes]] = []
    for number in range(first, last):
        members.append((f"{number:06}.id", str(number).encode()))
        if number % 5:
            members.append((f"{number:06}.txt", f"text {number} ".encode() * (1 + number % 3 * nbytes // 8)))
    return write_tar(path, members)


def samples_of(*paths: Path) -> list[dict[str, Any]]:
    """The samples of tar files, as `webdataset` 1.0.2 yields them, without __url__.

    These are the rules of its ``tar_file_iterator`` and ``group_by_keys``; tests/compat/test_webdataset.py compares.
    """
    samples: list[dict[str, Any]] = []
    for path in paths:
        key = None
        with tarfile.open(path) as tar:
            for member in tar:
                named = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", member.name)
                if not member.isreg() or re.match(r"__[^/]*__($|/)", member.name) or named is None:
                    continue
                if named[1] != key:
                    key = named[1]
                    samples.append({"__key__": key})
                content = tar.extractfile(member)
                assert content is not None
                samples[-1][named[2].lower()] = content.read()
    return samples


def without_nulls(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that a sample does not have."""
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
