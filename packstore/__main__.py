"""The command ``packstore``, and ``python -m packstore``."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and exits with its status. If Ctrl-C interrupts the imports, exits with 130 and no
    traceback."""
    try:
        from packstore.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
