"""Python imports this before anything else: processes on the bare checkout find what tests/bytecode.py keeps."""

import os
from pathlib import Path

if place := os.environ.get("PRIVCTL_TESTS_COMPILED"):
    from tests.bytecode import keep_in

    keep_in(Path(place), Path(__file__).parent.parent.parent)
