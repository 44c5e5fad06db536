"""``privctl`` and ``python -m privctl``, which works from a bare checkout too."""

import os
import sys
import warnings
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Loading it takes a tenth of a second, in which Ctrl-C is answered as it is later."""
    # huggingface_hub reads it once, when it is imported; some tokenizer classes ask the hub even for a local folder.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # What transformers and torch say to programmers is nothing that a user of a command could act on.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:  # -W or PYTHONWARNINGS asks for some
        warnings.simplefilter("ignore", FutureWarning)
    try:
        from privctl.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("privctl: interrupted; every file under its final name is complete\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
