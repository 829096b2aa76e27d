"""Run a script and leave at once when it is done: ``leaving.py SCRIPT ARGUMENTS``.

DistributedDataParallel keeps gloo's threads alive behind ``destroy_process_group``. Such a thread may let go of its
last tensor while the interpreter ends, and then torch aborts the process, whose work was done.
"""

import os
import runpy
import sys
from pathlib import Path

del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
