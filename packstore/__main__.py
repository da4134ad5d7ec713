"""The command ``packstore``, and ``python -m packstore``."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line, then exits; with 130 and no traceback if it is interrupted while Python loads modules."""
    try:
        from packstore.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
