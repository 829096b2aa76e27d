"""What a state remembers of its data and pipeline, and how a difference is told. Pure functions.

A state must stay small for any number of files, so the files are kept as sums: one over the hashes of their
names, one over the hashes' squares, and for rows and bytes one plain and one weighted by those hashes. Of a single
file that changed, went, came or was renamed, the differences of the sums give which one and what it was. A short list
of files is kept as it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midepoch._common.hashing import digest

FileFacts = tuple[str, int, int]
"""A file's name below the data set's root, its bytes, its rows."""

LISTED = 300
WORD = 1 << 64
REORDERED = "The files are the same, but in another order."


def data_fingerprint(files: Sequence[FileFacts], format: str = "") -> dict[str, Any]:
    """The fingerprint of a data set's files, which are read as a format, or as several."""
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


def _sums(files: Sequence[FileFacts]) -> list[int]:
    """The sums of the names' hashes, of hash times rows, of hash times bytes, and of the hashes' squares."""
    names = rows = sizes = squares = 0
    for name, size, count in files:
        weight = _weight(name)
        names, rows, sizes = names + weight, rows + weight * count, sizes + weight * size
        squares += weight * weight
    return [names % WORD, rows % WORD, sizes % WORD, squares % WORD]


def _weight(name: str) -> int:
    return int.from_bytes(digest(name.encode()), "little") | 1


def data_difference(then: Any, files: Sequence[FileFacts], now: Mapping[str, Any]) -> str | None:
    """What differs between a state's data and the files that are here, or None."""
    if (
        not isinstance(then, Mapping)
        or not {"files", "rows", "digest"} <= set(then)
        or not {"list", "sums"} & set(then)
    ):
        return "The state is damaged: its fingerprint of the data is not whole. Load an earlier checkpoint."
    if then["digest"] == now["digest"]:
        return _format_difference(then, files, now)
    if "list" in then:
        told = _listed_difference({name: (size, rows) for name, size, rows in then["list"]}, files)
    else:
        told = _summed_difference(then, files, now)
    return (
        f"{told} The checkpoint was taken on {then['files']:,} files with {then['rows']:,} rows; "
        f"here are {now['files']:,} files with {now['rows']:,} rows. "
        "Restore those files, or start anew without the state."
    )


def _format_difference(then: Mapping[str, Any], files: Sequence[FileFacts], now: Mapping[str, Any]) -> str | None:
    """Files that are the same but read as something else; states of early releases do not say as what."""
    was, here = then.get("format"), now.get("format")
    if was is None or was == here:
        return None
    return (
        f"{files[0][0]} and the other {then['files'] - 1:,} files, with {then['rows']:,} rows, were read as {was!r} "
        f"when the checkpoint was taken, and are read as {here!r} now. Pass format={was!r}, or start anew without the "
        "state."
    )


def _listed_difference(then: Mapping[str, tuple[int, int]], files: Sequence[FileFacts]) -> str:
    here = {name: (size, rows) for name, size, rows in files}
    told = [f"{name} is missing." for name in then if name not in here]
    told += [f"{name} is new." for name in here if name not in then]
    for name, (size, rows) in here.items():
        if name in then and then[name] != (size, rows):
            told.append(_changed(name, then[name][1], rows, then[name][0], size))
    if not told:
        return REORDERED
    return " ".join(told[:5]) + (f" (and {len(told) - 5} more)" if len(told) > 5 else "")


def _changed(name: str, rows_then: int, rows: int, size_then: int, size: int) -> str:
    if rows != rows_then:
        return f"{name} has {rows:,} rows; the checkpoint was taken when it had {rows_then:,}."
    return f"{name} has {size:,} bytes; the checkpoint was taken when it had {size_then:,}."


def _summed_difference(then: Mapping[str, Any], files: Sequence[FileFacts], now: Mapping[str, Any]) -> str:
    sums = now.get("sums") or _sums(files)
    names, rows_at, bytes_at, squares = ((here - there) % WORD for here, there in zip(sums, then["sums"], strict=True))
    count, rows, size = (now[key] - then[key] for key in ("files", "rows", "bytes"))
    if not any((count, rows, size, names, rows_at, bytes_at)):
        return REORDERED
    if count == 0 and names == 0:
        for name, size_now, rows_now in files:
            weight = _weight(name)
            if (weight * rows % WORD, weight * size % WORD) == (rows_at, bytes_at):
                return _changed(name, rows_now - rows, rows_now, size_now - size, size_now)
        return "Several files have other rows or bytes than then, under the same names."
    for name, *_ in files:
        weight = _weight(name)
        if count == 1 and weight == names:
            return f"{name} is new."
        if count == 0 and (weight * weight - (weight - names) ** 2) % WORD == squares:
            gone = next(
                (gap for gap in _gaps(files) if (weight - _weight(gap)) % WORD == names), "a file that was there"
            )
            return f"{name} is new, and {gone} is missing."
    if count == -1:
        gone = next((name for name in _gaps(files) if (-_weight(name)) % WORD == names), "A file")
        return f"{gone}, with {-rows:,} rows in {-size:,} bytes, is missing."
    if count == 0:
        return "Several files have other names than then."
    return f"The files have other names, and there are {abs(count):,} {'more' if count > 0 else 'fewer'} of them."


def _gaps(files: Sequence[FileFacts]) -> Sequence[str]:
    """Names that fit between the numbered ones that are here, such as part-0007 of part-0006 and part-0008."""
    here = {name for name, *_ in files}
    gaps: dict[str, None] = {}
    for name in here:
        for match in re.finditer(r"\d+", name):
            digits = match.group()
            for number in (int(digits) - 1, int(digits) + 1):
                guess = f"{name[: match.start()]}{number:0{len(digits)}d}{name[match.end() :]}"
                if number >= 0 and guess not in here:
                    gaps[guess] = None
    return list(gaps)


def pipeline_difference(then: Any, now: Sequence[Mapping[str, Any]]) -> str | None:
    """The first stage or parameter that differs, or None."""
    if not isinstance(then, list) or not all(isinstance(stage, Mapping) for stage in then):
        return "what the state says of it is damaged"
    for number, (was, here) in enumerate(zip(then, now, strict=False), start=1):
        if was.get("op") != here.get("op"):
            return f"stage {number} was {_stage(was)} then and is {_stage(here)} now"
        key = next((key for key in [*was, *here] if was.get(key) != here.get(key)), None)
        if key is None:  # a parameter that is not told is None
            continue
        return f"{key} of stage {number}, {here['op']}, was {was.get(key)!r} then and is {here.get(key)!r} now"
    if len(then) != len(now):
        longer, when = (then, "then but not now") if len(then) > len(now) else (now, "now but not then")
        return f"stage {min(len(then), len(now)) + 1}, {_stage(longer[min(len(then), len(now))])}, is there {when}"
    return None


def _stage(stage: Mapping[str, Any]) -> str:
    parameters = ", ".join(f"{key}={value!r}" for key, value in stage.items() if key != "op")
    return f"{stage.get('op')}({parameters})"
