"""Clipped training without noise: the training facts that noise added later is calibrated to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from privctl.domain.mechanism import ClippedTraining, Mechanism
from verify.compare import compare
from verify.methods.expected import CLIPPING, ExpectedMethod, StatedTraining
from verify.texts.warnings.forms import OWNER_OF_MEASURES, UNPROTECTED, form


def _disagreements(mechanism: Mechanism | None, parameters: StatedTraining) -> Iterator[str]:
    if not isinstance(mechanism, ClippedTraining):
        return
    for name, in_mechanism, in_parameters in (
        ("clip_norm", mechanism.clip_norm, parameters.clip_norm),
        ("learning_rate", mechanism.learning_rate, parameters.learning_rate),
        ("momentum", mechanism.momentum, parameters.momentum),
        ("beta1", mechanism.beta1, parameters.beta1),
        ("beta2", mechanism.beta2, parameters.beta2),
        ("weight_decay", mechanism.weight_decay, parameters.weight_decay),
        ("batch_size", mechanism.batch_size, parameters.batch_size),
        ("optimizer", mechanism.optimizer, parameters.optimizer),
    ):
        yield from compare(f"mechanism's {name}", in_mechanism, in_parameters, "the parameters say")
    yield from compare("dataset_size", mechanism.dataset_size, parameters.examples, "the parameters say")
    if mechanism.steps is None and parameters.updates is not None:
        a_pass = math.ceil(mechanism.dataset_size / mechanism.batch_size)
        yield from compare("mechanism's epochs", mechanism.epochs, parameters.updates // a_pass, "the updates made are")
    elif mechanism.steps is None:
        yield "it does not say how many updates were made"


_UNPROTECTED = UNPROTECTED + form("; privctl noise makes a release of them")

EXPECTED = ExpectedMethod(
    by_gradients=True,
    mechanisms=(ClippedTraining,),
    disagreements=_disagreements,
    warnings={"unprotected": _UNPROTECTED},
    choices={"clipping": CLIPPING},
    warned=lambda *_: iter((_UNPROTECTED, OWNER_OF_MEASURES)),
    clipped=True,
)
