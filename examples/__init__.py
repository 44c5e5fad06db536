"""Examples of privctl. Those in Python share ``harness``."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # with one thread, sums are reproducible to the bit, and times vary less
