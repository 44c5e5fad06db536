"""privctl: measure what trained models reveal of their training data, and train models that reveal less, with a bound.

From Python, the commands are functions: ``privctl.noise``, ``retrain``, ``audit``, ``audit_scores``, ``audit_split``,
``account``, ``verify``, ``gate`` and ``report``. ``make_private``, ``from_opacus``, ``from_elsewhere``,
``audit_module`` and ``AuditCallback`` serve training loops and networks that are not privctl's. Importing privctl loads
none of the engines.
See docs/python.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privctl.domain.version import VERSION

if TYPE_CHECKING:
    from privctl.api import account, audit, audit_scores, audit_split, gate, noise, report, retrain, verify
    from privctl.integrations.audit_module import audit_module
    from privctl.integrations.from_elsewhere import from_elsewhere
    from privctl.integrations.from_opacus import from_opacus
    from privctl.integrations.make_private import make_private
    from privctl.integrations.trainer_callback import AuditCallback

__version__ = VERSION
__all__ = [
    "AuditCallback",
    "account",
    "audit",
    "audit_module",
    "audit_scores",
    "audit_split",
    "from_elsewhere",
    "from_opacus",
    "gate",
    "make_private",
    "noise",
    "report",
    "retrain",
    "verify",
]

#: Name -> the module that holds it, imported when it is first asked for.
_HOME = {
    **dict.fromkeys(("account", "audit", "audit_scores", "audit_split", "report", "retrain", "verify"), "privctl.api"),
    "audit_module": "privctl.integrations.audit_module",
    "from_elsewhere": "privctl.integrations.from_elsewhere",
    "from_opacus": "privctl.integrations.from_opacus",
    "make_private": "privctl.integrations.make_private",
    "AuditCallback": "privctl.integrations.trainer_callback",
}
#: Functions that share their name with a package of privctl, which is called in their place.
_PACKAGES = ("gate", "noise")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"privctl.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'privctl' has no attribute {name!r}")
    importlib.import_module("privctl.api")  # says how reports are printed
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
