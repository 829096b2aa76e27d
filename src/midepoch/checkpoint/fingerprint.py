"""What a state keeps of its data and pipeline, and what differs from the present ones, in words. Pure functions.

A state must stay small for any number of files, so it keeps sums over them: of the hashes of their names, and of their
rows and bytes, both plain and weighted by those hashes. If a single file was changed, added or removed, the
differences of the sums say which file it is. A short list of files is kept in full.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midepoch._common.checks import count, shortened
from midepoch._common.hashing import digest

FileFacts = tuple[str, int, int]
"""A file's name below the dataset's root, its bytes, its rows."""

LISTED = 300
"""The most characters of JSON in which a list of files is kept in full."""
WORD = 1 << 64
REORDERED = "The files are the same, but in another order."


def data_fingerprint(files: Sequence[FileFacts], format: str = "") -> dict[str, Any]:
    """The fingerprint of a dataset's files. ``format`` names the format that they are read as."""
    lines = (f"{name}\0{size}\0{rows}\n".encode() for name, size, rows in files)
    facts: dict[str, Any] = {
        "files": len(files),
        "rows": sum(rows for _, _, rows in files),
        "bytes": sum(size for _, size, _ in files),
        "digest": digest(*lines).hex(),
    } | ({"format": format} if format else {})
    listed = [list(file) for file in files] if len(files) * 8 < LISTED else []
    if listed and len(json.dumps(listed)) <= LISTED:
        facts["list"] = listed
    else:
        facts["sums"] = _sums(files)
    return facts


def rows_of(data: Any) -> int:
    """The rows of a dataset, or of all parts of a mixture, by their fingerprint; 0 where it does not say."""
    if not isinstance(data, Mapping):
        return 0
    parts = data.get("parts")
    if isinstance(parts, list | tuple):
        return sum(rows_of(part) for part in parts)
    rows = data.get("rows")
    return rows if type(rows) is int and rows > 0 else 0


def _sums(files: Sequence[FileFacts]) -> list[int]:
    """The sums of the names' hashes, of hash times rows, and of hash times bytes."""
    names = rows = sizes = 0
    for name, size, row_count in files:
        weight = _weight(name)
        names, rows, sizes = names + weight, rows + weight * row_count, sizes + weight * size
    return [names % WORD, rows % WORD, sizes % WORD]


def _weight(name: str) -> int:
    return int.from_bytes(digest(name.encode()), "little") | 1


def data_difference(then: Any, files: Sequence[FileFacts], now: Mapping[str, Any]) -> str | None:
    """What differs between a state's data and the present files, or None."""
    if (
        not isinstance(then, Mapping)
        or not {"files", "rows", "digest"} <= set(then)
        or not {"list", "sums"} & set(then)
    ):
        return "The state is damaged: its fingerprint of the data is incomplete. Load an earlier checkpoint."
    if then["digest"] == now["digest"]:
        return _format_difference(then, files, now)
    return (
        f"{files_difference(then, files, now)} The checkpoint was taken on {count('file', then['files'])} with "
        f"{count('row', then['rows'])}; the dataset is now {count('file', now['files'])} with "
        f"{count('row', now['rows'])}. "
        "Restore those files, or start over without the state."
    )


def files_difference(
    then: Mapping[str, Any],
    files: Sequence[FileFacts],
    now: Mapping[str, Any],
    *,
    since: str = "the checkpoint was taken when it had",
) -> str | None:
    """Which files have changed since a fingerprint was made, or None. ``since`` comes before an old number."""
    if then["digest"] == now["digest"]:
        return None
    if "list" in then:
        return _listed_difference({name: (size, rows) for name, size, rows in then["list"]}, files, since)
    return _summed_difference(then, files, now, since)


def _format_difference(then: Mapping[str, Any], files: Sequence[FileFacts], now: Mapping[str, Any]) -> str | None:
    """The formats, if the same files are read as another one. Files of no rows have none."""
    was, here = then.get("format"), now.get("format")
    if was is None or was == here:
        return None
    others = f" and {count('other file', len(files) - 1)}" if len(files) > 1 else ""
    return (
        f"The files ({files[0][0]}{others}, with {count('row', then['rows'])}) were read as {was!r} when the "
        f"checkpoint was taken, and are read as {here!r} now. Pass format={was!r}, or start over without the state."
    )


def _listed_difference(then: Mapping[str, tuple[int, int]], files: Sequence[FileFacts], since: str) -> str:
    here = {name: (size, rows) for name, size, rows in files}
    differences = [f"{name} is missing." for name in then if name not in here]
    differences += [f"{name} is new." for name in here if name not in then]
    for name, (size, rows) in here.items():
        if name in then and then[name] != (size, rows):
            differences.append(_changed(name, then[name][1], rows, then[name][0], size, since))
    if not differences:
        return REORDERED
    return " ".join(differences[:5]) + (f" (and {len(differences) - 5} more)" if len(differences) > 5 else "")


def _changed(name: str, rows_then: int, rows: int, size_then: int, size: int, since: str) -> str:
    if rows != rows_then:
        return f"{name} has {count('row', rows)}; {since} {rows_then:,}."
    return f"{name} has {count('byte', size)}; {since} {size_then:,}."


def _summed_difference(then: Mapping[str, Any], files: Sequence[FileFacts], now: Mapping[str, Any], since: str) -> str:
    """Name the file, if a single one was changed, added or removed: then the sums differ by what that file adds."""
    sums = now.get("sums") or _sums(files)
    names, rows_sum, bytes_sum = ((here - there) % WORD for here, there in zip(sums, then["sums"], strict=True))
    files_more, rows, size = (now[key] - then[key] for key in ("files", "rows", "bytes"))
    if files_more == 0 and names == 0:
        if not any((rows, size, rows_sum, bytes_sum)):
            return REORDERED
        for name, size_now, rows_now in files:
            if _weight(name) * rows % WORD == rows_sum and _weight(name) * size % WORD == bytes_sum:
                return _changed(name, rows_now - rows, rows_now, size_now - size, size_now, since)
        return "Several files have other rows or bytes than then, under the same names."
    if files_more == 1:
        added = next((name for name, *_ in files if _weight(name) == names), None)
        if added is not None:
            return f"{added} is new."
    if files_more == -1:
        missing = next((name for name in _numbered_neighbours(files) if -_weight(name) % WORD == names), "A file")
        return f"{missing}, with {count('row', -rows)} in {count('byte', -size)}, is missing."
    return "Several files have other names than then, are new or are missing."


def _numbered_neighbours(files: Sequence[FileFacts]) -> Iterator[str]:
    """Names whose number is one lower or higher than that of a file, such as part-0007 for part-0006."""
    for name, *_ in files:
        for match in re.finditer(r"\d+", name):
            for number in (int(match[0]) - 1, int(match[0]) + 1):
                yield f"{name[: match.start()]}{number:0{len(match[0])}d}{name[match.end() :]}"


def pipeline_difference(then: Any, now: Sequence[Mapping[str, Any]]) -> str | None:
    """The first stage or parameter that differs, or None."""
    if not isinstance(then, list) or not all(isinstance(stage, Mapping) for stage in then):
        return "its description in the state is damaged"
    for number, (was, here) in enumerate(zip(then, now, strict=False), start=1):
        if was.get("op") != here.get("op"):
            return f"stage {number} was {stage_in_words(was)} then and is {stage_in_words(here)} now"
        key = next((key for key in [*was, *here] if was.get(key) != here.get(key)), None)
        if key is None:  # a parameter that is not described is None
            continue
        then_value, now_value = shortened(was.get(key), 300), shortened(here.get(key), 300)
        return f"{key} of stage {number}, {here['op']}, was {then_value} then and is {now_value} now"
    number = min(len(then), len(now))
    if len(then) > number:
        return f"stage {number + 1}, {stage_in_words(then[number])}, was removed"
    if len(now) > number:
        return f"stage {number + 1}, {stage_in_words(now[number])}, was added"
    return None


def stage_in_words(stage: Mapping[str, Any]) -> str:
    """A stage and its parameters, as a state describes them."""
    parameters = ", ".join(f"{key}={shortened(value, 300)}" for key, value in stage.items() if key != "op")
    return f"{stage.get('op')}({parameters})"
