"""``python -m skylark`` is the command ``skylark``."""

from skylark.cli.main import main

if __name__ == "__main__":
    main()
