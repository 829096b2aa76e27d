"""The command ``midepoch``: its arguments, what it prints, and its exit codes.

0 means done, or yes; 1 means no: a state does not fit, a check failed, a row is nowhere; 2 means that the question
could not be answered; 130 means that the user interrupted it.
"""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from midepoch.errors import MidepochError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
MOST_CHARACTERS = 60
"""A longer cell of a table is cut."""
PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a command."""

    value: Any
    """What ``--json`` prints."""
    lines: Sequence[str] = field(default_factory=list)
    """What people read."""
    good: bool = True
    """False if the answer to the question is no: then the exit code is 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.name is None:
        parser.print_help()
        return 0
    command: Callable[[Namespace], Answer] = getattr(import_module(f"midepoch.cli.{parsed.module}"), parsed.name)
    try:
        answer = command(parsed)
        lines = [json.dumps(answer.value, default=str)] if parsed.json else answer.lines
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the output any more, of which Python would complain when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"midepoch {parsed.name}: interrupted. What was finished is kept.\n")
        return INTERRUPTED
    except Exception as error:
        if not _is_expected(error):
            raise
        sys.stderr.write(f"midepoch {parsed.name}: {in_words(error)}\n")
        return 2
    return 0 if answer.good else 1


def _is_expected(error: Exception) -> bool:
    """False for an error that only a mistake in midepoch can raise: its traceback is needed to find it."""
    is_of_user = bool(getattr(error, "__notes__", ()))
    return is_of_user or isinstance(error, MidepochError | ValueError | TypeError | LookupError | OSError)


def in_words(error: Exception) -> str:
    """An error as a user reads it: what is wrong, where, and what to do.

    An error of a user's function has notes, which say in which stage and at which row it was raised; the type of the
    error and the line of the function are added.
    """
    notes = [note.removeprefix("midepoch: ") for note in getattr(error, "__notes__", [])]
    if isinstance(error, OSError) and error.filename is not None and not notes:
        return f"{error.filename} cannot be used: {error.strerror}. Check the path, its permissions and the disk."
    if notes and not isinstance(error, MidepochError):
        return "\n  ".join([f"{type(error).__name__}: {error}", *notes, *_line_of_user(error)])
    return "\n  ".join([(isinstance(error, OSError) and error.strerror) or str(error), *notes])


def _line_of_user(error: Exception) -> list[str]:
    """The last line of code outside midepoch that led to an error. A syntax error names its own."""
    if isinstance(error, SyntaxError):
        return []
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith((PACKAGE, "<"))]
    return [f"at line {frames[-1].lineno} of {frames[-1].filename}"] if frames else []


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as aligned columns. A column without any value is left out."""
    if not rows:
        return []
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    numbers = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _integer(least: int) -> Callable[[str], int]:
    """What reads an integer of at least so much."""

    def integer(text: str) -> int:
        number = int(text)
        if number < least:
            raise ArgumentTypeError(f"{number} is too small; it must be at least {least}")
        return number

    return integer


Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, **options: Any) -> Argument:
    return names, options


FILES = _argument("data", nargs="+", metavar="PATH", help="files, folders, globs or URLs")
DATA = _argument("--data", nargs="+", metavar="PATH", help="compare it with these files, and count")
PIPELINE = _argument(
    "--pipeline", metavar="MODULE:FUNCTION", help="a function that gets the dataset and returns it with stages"
)
CHECKPOINT = _argument("checkpoint", metavar="CHECKPOINT", help=".pt, .json, or a folder of torch's DCP")
SHUFFLE = _argument("--shuffle", type=int, metavar="SEED", help="shuffle the rows; a checkpoint knows it")
VERSION = _argument("--version", help="another version of the functions")
RUN = (
    _argument("--data", nargs="+", metavar="PATH", required=True, help="the files of the run"),
    _argument("--checkpoint", help="a checkpoint of the run, which knows its order, ranks and batch sizes"),
    PIPELINE,
    _argument("--epoch", type=_integer(0), help="the epoch; by default that of the checkpoint, or 0"),
    _argument("--ranks", type=_integer(1), help="trace the epoch as read by this number of ranks, from its beginning"),
    _argument("--batch-size", type=_integer(1), help="without a checkpoint: rows of a batch"),
    _argument("--lanes", type=_integer(1), help="without a checkpoint: lanes; by default the number of ranks"),
    SHUFFLE,
)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midepoch",
        description="Look at files and checkpoints, verify resumes on your own data, and trace steps to rows.",
        epilog="Exit codes: 0 done or yes, 1 no, 2 the question could not be answered.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", dest="name")

    def add(name: str, module: str, help: str, *arguments: Argument) -> None:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(module=module)
        command.add_argument("--json", action="store_true", help="print one JSON value")
        for names, options in arguments:
            command.add_argument(*names, **options)

    old = "remove the indexes that nobody has opened for this number of days (90)"
    add(
        "index",
        "prepare",
        "build the index of files, and say what they hold; or remove unused ones",
        _argument("data", nargs="*", metavar="PATH", help="files, folders, globs or URLs"),
        _argument("--clean", nargs="?", type=_integer(0), const=90, metavar="DAYS", help=old),
    )
    add(
        "head",
        "prepare",
        "show the first items",
        FILES,
        PIPELINE,
        _argument("-n", type=_integer(0), default=5, help="how many items (5)"),
        SHUFFLE,
        _argument("--at", type=_integer(0), default=0, metavar="N", help="start at row N of the order"),
        _argument("--epoch", type=_integer(0), default=0),
    )
    next_rows = _argument("-n", type=_integer(0), default=5, help="how many of the next rows to show (5)")
    holds = "say what a checkpoint holds, and whether it fits files"
    add("inspect", "inspect", holds, CHECKPOINT, DATA, PIPELINE, next_rows)
    pair = [_argument(name, metavar="CHECKPOINT") for name in ("first", "second")]
    add("diff", "inspect", "say what was delivered between two checkpoints", *pair, DATA, PIPELINE)
    rows = _argument("--rows", type=_integer(1), default=500, help="use the first rows only (500)")
    add(
        "verify",
        "verify",
        "stop and resume on your own data, or any loader with a state, in many ways",
        _argument("data", nargs="*", metavar="PATH", help="files, folders, globs or URLs"),
        PIPELINE,
        rows,
        _argument("--loader", metavar="MODULE:FUNCTION", help="instead of files: a function that returns a loader"),
        _argument("--key", metavar="COLUMN", help="the column of a loader that identifies a row"),
        _argument("--steps", type=_integer(2), default=200, help="batches to read of a loader (200)"),
        _argument("--kill", action="store_true", help="end each process that saved a state with SIGKILL"),
        _argument("--timeout", type=_integer(1), default=120, help="a loader hangs after so many seconds (120)"),
        _argument("--png", metavar="FILE", help="draw which rows of a loader came once, twice or never"),
    )
    step = _argument("step", type=_integer(0), metavar="STEP", help="counted from 0 in the epoch")
    add("trace", "inspect", "list the rows of a step of an epoch on all ranks", step, *RUN)
    row = _argument("row", type=_integer(0), metavar="ROW", help="counted from 0 in the file")
    add("find", "inspect", "say when a row comes", _argument("file", metavar="FILE"), row, *RUN)
    kept = _argument("--folder", help="where the result is kept")
    made = _argument("--folder", required=True, help="where the result is kept")
    add("survey", "prepare", "count what filters and packs make of each row", FILES, PIPELINE, kept, VERSION)
    add("cache", "prepare", "make all rows once, as Arrow files in a folder", FILES, PIPELINE, made, VERSION)
    return parser
