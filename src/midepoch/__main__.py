"""``python -m midepoch`` is the command ``midepoch``."""

import sys

from midepoch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
