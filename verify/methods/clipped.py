"""Clipped training without noise: the facts that noise added later is made for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from privctl.domain.mechanism import ClippedTraining, Mechanism
from verify.compare import compare
from verify.method import ExpectedMethod, StatedTraining


def _disagreements(mechanism: Mechanism | None, said: StatedTraining) -> Iterator[str]:
    if not isinstance(mechanism, ClippedTraining):
        return
    for name, here, there in (
        ("clip_norm", mechanism.clip_norm, said.clip_norm),
        ("learning_rate", mechanism.learning_rate, said.learning_rate),
        ("momentum", mechanism.momentum, said.momentum),
        ("beta1", mechanism.beta1, said.beta1),
        ("beta2", mechanism.beta2, said.beta2),
        ("weight_decay", mechanism.weight_decay, said.weight_decay),
        ("batch_size", mechanism.batch_size, said.batch_size),
        ("optimizer", mechanism.optimizer, said.optimizer),
    ):
        yield from compare(f"mechanism's {name}", here, there, "the parameters say")
    yield from compare("dataset_size", mechanism.dataset_size, said.examples, "the parameters say")
    if mechanism.steps is None and said.updates is not None:
        a_pass = math.ceil(mechanism.dataset_size / mechanism.batch_size)
        yield from compare("mechanism's epochs", mechanism.epochs, said.updates // a_pass, "the updates made are")
    elif mechanism.steps is None:
        yield "it does not say how many updates were made"


EXPECTED = ExpectedMethod(mechanisms=(ClippedTraining,), disagreements=_disagreements, clipped=True)
