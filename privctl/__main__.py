"""The entry point of ``privctl`` and ``python -m privctl``, which also works in a checkout without installation."""

import os
import sys
import warnings
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C while it is being imported, about 0.1 s, has the same effect as later."""
    # Some tokenizer classes contact the hub even for a local folder. huggingface_hub reads this when it is imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Messages of transformers and torch to programmers are of no use to users of a command.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:  # -W or PYTHONWARNINGS would ask for warnings
        warnings.simplefilter("ignore", FutureWarning)
    try:
        from privctl.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("privctl: interrupted; every file under its final name is complete\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
