"""The command ``packstore``, and ``python -m packstore``."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line. An interrupt while it is still loading ends it as quietly as a later one."""
    try:
        from packstore.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
