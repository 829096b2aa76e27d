"""The process of a contender, in its own environment: a request is a line of JSON, and so is the answer.

``python -m benchmarks.peers.child NAME``. What libraries print goes to the standard error.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import sys
import traceback
import warnings
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.measures import MEASURES, MOST_READ, RefusedError
from benchmarks.peers.view import NotMeasuredError, NotOfferedError, View, refuse_what_few_offer


def answer(contender: ModuleType, request: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """What a request leads to. An error is an answer too."""
    try:
        if request["do"] == "versions":
            return {"versions": {name: metadata.version(name) for name in request["packages"]}}
        if request["do"] == "prepare":
            refuse_what_few_offer(sys.argv[1], request["kind"])
            if request["rows"] > MOST_READ and contender.STATES == "read":
                raise NotMeasuredError("to write the data, and to make the state, all rows would have to be read")
            _prepare(contender, request["kind"], Path(request["source"]), Path(request["folder"]))
            return {}
        refuse_what_few_offer(sys.argv[1], request["view"].get("work", ""))
        options = dict(request["options"])
        if request["do"] == "resume":
            options["kept"] = kept
        return {"figures": MEASURES[request["do"]](contender, View(**request["view"]), **options)}
    except NotOfferedError as reason:
        return {"not_offered": str(reason)}
    except NotMeasuredError as reason:
        return {"not_measured": str(reason)}
    except RefusedError as reason:
        return {"refused": str(reason)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _prepare(contender: ModuleType, kind: str, source: Path, folder: Path) -> None:
    """Write the data once, and never leave them half written."""
    if folder.exists() or not hasattr(contender, "prepare"):
        return
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    contender.prepare(kind, source, unfinished)
    unfinished.rename(folder)


def main() -> None:
    """Answer until the requests end."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.set_inheritable(answers.fileno(), False)
    warnings.filterwarnings("ignore")
    kept: dict[str, Any] = {}
    try:
        contender = importlib.import_module(f"benchmarks.peers.contenders.{sys.argv[1]}")
        broken = None
    except Exception as error:
        traceback.print_exc()
        broken = {"error": f"{type(error).__name__}: {error}"}
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(broken or answer(contender, request, kept)), file=answers)
    answers.flush()
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)  # threads of some libraries never end


if __name__ == "__main__":
    main()
