"""Whether what an audit drew at random can be drawn again: only numpy's generator of one version surely repeats it."""

from __future__ import annotations

import numpy as np

from privctl.domain.report import Omission, PrivacyReport


def is_same_numpy(report: PrivacyReport) -> bool:
    """Whether the installed numpy is the version that the report states."""
    return report.versions.get("numpy") == np.__version__


def not_drawn_again(report: PrivacyReport) -> Omission:
    """What is not compared, or only roughly, with another numpy."""
    then = report.versions.get("numpy", "no version that it states")
    return Omission(
        what="labels drawn again",
        reason=f"the audit drew them by numpy {then}, and {np.__version__} is installed: the blind baseline's p-value, "
        "intervals of differences from it and decisions of midpoint are the report's word, and other p-values are "
        "compared roughly",
    )
