"""What the tests of ``privctl noise`` share: facts, weights, and what a run leaves."""

from pathlib import Path

import numpy as np

from privctl.domain.report import PrivacyReport
from privctl.reports.codec import decode

FACTS = ["--epochs", "10", "--learning-rate", "5e-5", "--clip-norm", "1", "--dataset-size", "1000", "--batch-size", "5"]
#: The paper's noise for these facts.
PUBLISHED = [*FACTS, "--calibration", "published"]
RNG = np.random.default_rng(1)
WEIGHTS = {
    "embed": RNG.standard_normal((300, 70)).astype(np.float32),
    "half": RNG.standard_normal((50, 50)).astype(np.float16),
    "bias": np.zeros(7, np.float32),
    "positions": np.arange(12),
}
WEIGHTS["head"] = WEIGHTS["embed"].copy()


def report_at(path: Path) -> PrivacyReport:
    return decode(path.read_text(), str(path))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
