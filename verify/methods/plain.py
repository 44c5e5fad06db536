"""Training without any protection: no mechanism and no guarantee."""

from __future__ import annotations

from types import NoneType

from verify.methods.expected import ExpectedMethod, StatedTraining
from verify.texts.warnings.forms import OWNER_OF_MEASURES, UNPROTECTED


def _unbounded(parameters: StatedTraining, adaptive: bool) -> str:
    return (
        "" if adaptive else f"gradients were not clipped, and nothing bounds what {parameters.optimizer} makes of them"
    )


EXPECTED = ExpectedMethod(
    by_gradients=True,
    mechanisms=(NoneType,),
    unbounded=_unbounded,
    warnings={"unprotected": UNPROTECTED},
    warned=lambda *_: iter((UNPROTECTED, OWNER_OF_MEASURES)),
)
