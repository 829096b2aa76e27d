"""Functions of pipelines that are surveyed or cached in processes of their own, and a script that does so.

They note the rows that they are called with in a file, so that tests can count calls, and kill at a row.
"""

import os
import signal
import sys
import time
from pathlib import Path

CALLS, KILL_AT, KILL_PARENT, PAUSE = "TEST_CALLS", "TEST_KILL_AT", "TEST_KILL_PARENT", "TEST_PAUSE"


def note(row):
    """Write down a call, and kill this process or its parent at the row where the test wants that."""
    with open(os.environ[CALLS], "a") as file:
        file.write(f"{row['id']}\n")
    if os.environ.get(KILL_AT) == str(row["id"]):
        os.kill(os.getppid() if os.environ.get(KILL_PARENT) else os.getpid(), signal.SIGKILL)
        time.sleep(60)
    time.sleep(float(os.environ.get(PAUSE, "0")))


def tokenise(row):
    note(row)
    return {"input_ids": list(range(row["id"] % 11))}


def build(data):
    import midepoch as me

    return me.read(data).map(tokenise).filter(is_kept)


def is_kept(row):
    return row["id"] % 3 != 1


def small_units():
    from midepoch.counting import survey

    survey.SMALLEST_UNIT, survey.COLUMN_BYTES = 100, 100


def main(action, data, folder, processes):
    """Survey or cache the files of a folder."""
    import midepoch._common.jobs as executors

    executors.usable_cores = lambda: int(processes)
    small_units()
    dataset = build(data)
    if action == "survey":
        dataset.pack(16).survey(folder=folder)
    else:
        dataset.cache(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import surveying  # the functions must be those of a module that other processes can import

    surveying.main(*sys.argv[1:])
