"""The arguments of the command, and its exit codes.

0 means done, or yes; 1 means no: a state does not fit, a check failed, a row is nowhere; 2 means that the question
could not be answered; 130 means that the user interrupted it.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module

from midepoch.cli.failures import in_words
from midepoch.cli.output import Answer, leave_broken_pipe, show
from midepoch.errors import MidepochError

Command = Callable[[Namespace], Answer]
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.name is None:
        parser.print_help()
        return 0
    module, name = parsed.command
    command: Command = getattr(import_module(f"midepoch.cli.{module}"), name)
    try:
        answer = command(parsed)
        show(answer, as_json=parsed.json)
    except BrokenPipeError:
        leave_broken_pipe()
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


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midepoch",
        description="Look at files and checkpoints, verify resumes on your own data, and trace steps to rows.",
        epilog="Exit codes: 0 done or yes, 1 no, 2 the question could not be answered.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", dest="name")

    def add(name: str, module: str, help: str) -> ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.add_argument("--json", action="store_true", help="print one JSON value")
        command.set_defaults(command=(module, name))
        return command

    _index(add("index", "files", "build the index of files, and say what they hold; or remove unused ones"))
    _head(add("head", "files", "show the first items"))
    _inspect(add("inspect", "inspecting", "say what a checkpoint holds, and whether it fits files"))
    _verify(add("verify", "verifying", "stop and resume on your own data, in many ways"))
    diff = add("diff", "inspecting", "say what was delivered between two checkpoints")
    diff.add_argument("first", type=_path, metavar="CHECKPOINT_A")
    diff.add_argument("second", type=_path, metavar="CHECKPOINT_B")
    diff.add_argument(
        "--data", nargs="+", type=_path, metavar="PATH", help="the files, to count packs and shares exactly"
    )
    diff.set_defaults(n=0)
    _pipeline(diff)
    trace = add("trace", "tracing", "list the rows of a step of an epoch on all ranks")
    trace.add_argument(
        "step", type=_integer(0, "midepoch trace STEP --data PATH"), metavar="STEP", help="counted from 0 in the epoch"
    )
    _run(trace)
    find = add("find", "tracing", "say when a row comes")
    find.add_argument("file", type=_path, metavar="FILE")
    find.add_argument(
        "row", type=_integer(0, "midepoch find FILE ROW --data PATH"), metavar="ROW", help="counted from 0 in the file"
    )
    _run(find)
    _prepare(add("survey", "files", "count what filters and packs make of each row"), needs_folder=False)
    _prepare(add("cache", "files", "make all rows once, as Arrow files in a folder"), needs_folder=True)
    return parser


def _integer(least: int, call: str | None = None) -> Callable[[str], int]:
    """What reads an integer of at least so much. ``call`` is shown where something else stands in its place."""

    def integer(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no integer{f'; call {call}' if call else ''}") from None
        if number < least:
            raise ArgumentTypeError(f"{number} is too small; it must be at least {least}")
        return number

    return integer


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < float("inf"):
        raise ArgumentTypeError(f"{text} is no number of days; pass 0 or more")
    return days


def _path(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("the path is empty; a variable of the shell may not be set")
    return text


def _files(command: ArgumentParser) -> None:
    command.add_argument("data", nargs="+", type=_path, metavar="PATH", help="files, folders, globs or URLs")


def _index(command: ArgumentParser) -> None:
    command.add_argument("data", nargs="*", type=_path, metavar="PATH", help="files, folders, globs or URLs")
    command.add_argument(
        "--clean",
        nargs="?",
        type=_days,
        const=90,
        metavar="DAYS",
        help="remove the indexes that nobody has opened for this number of days (90)",
    )


def _pipeline(command: ArgumentParser) -> None:
    command.add_argument(
        "--pipeline", metavar="MODULE:FUNCTION", help="a function that gets the dataset and returns it with stages"
    )


def _head(command: ArgumentParser) -> None:
    _files(command)
    _pipeline(command)
    command.add_argument("-n", type=_integer(0), default=5, help="how many items (5)")
    command.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle the rows first")
    command.add_argument("--at", type=_integer(0), default=0, metavar="N", help="start at row N of the order")
    command.add_argument("--epoch", type=_integer(0), default=0)


def _inspect(command: ArgumentParser) -> None:
    command.add_argument("checkpoint", type=_path, metavar="CHECKPOINT", help=".pt, .json, or a folder of torch's DCP")
    command.add_argument("--data", nargs="+", type=_path, metavar="PATH", help="compare it with these files")
    command.add_argument("-n", type=_integer(0), default=5, help="how many of the next rows to show (5)")
    command.add_argument(
        "--png", type=_path, metavar="FILE", help="draw what is delivered of each lane and, with --data, file"
    )
    _pipeline(command)


def _verify(command: ArgumentParser) -> None:
    _files(command)
    _pipeline(command)
    command.add_argument("--rows", type=_integer(1), default=500, help="use the first rows only (500)")


def _run(command: ArgumentParser) -> None:
    command.add_argument("--data", nargs="+", type=_path, metavar="PATH", required=True, help="the files of the run")
    command.add_argument(
        "--checkpoint", type=_path, help="a checkpoint of the run, which knows its order, ranks and batch sizes"
    )
    _pipeline(command)
    command.add_argument("--epoch", type=_integer(0), help="the epoch; by default that of the checkpoint, or 0")
    command.add_argument(
        "--ranks",
        type=_integer(1),
        help="trace the epoch as read by this number of ranks, from its beginning; uncounted, from the checkpoint on",
    )
    command.add_argument("--batch-size", type=_integer(1), help="without a checkpoint: rows of a batch")
    command.add_argument(
        "--lanes", type=_integer(1), help="without a checkpoint: lanes; by default the number of ranks"
    )
    command.add_argument("--shuffle", type=int, metavar="SEED", help="without a checkpoint: shuffle the rows")


def _prepare(command: ArgumentParser, *, needs_folder: bool) -> None:
    _files(command)
    _pipeline(command)
    command.add_argument("--folder", type=_path, required=needs_folder, help="where the result is kept")
    command.add_argument("--version", help="another version of the functions")
