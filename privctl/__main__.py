"""``python -m privctl``, which works from a bare checkout too."""

from privctl.cli import main

if __name__ == "__main__":
    main()
