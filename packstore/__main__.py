"""``python -m packstore``."""

from packstore.cli import main

if __name__ == "__main__":
    main()
