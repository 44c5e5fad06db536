"""The report of a training in a loop that is not privctl's.

privctl cannot enforce anything in such a loop, which may use other records or take other steps than it should. So every
assumption about it is asserted, and a gate counts the guarantee only where its policy accepts each of them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privctl.accounting.deltas import delta_warning
from privctl.accounting.gridded import Released
from privctl.accounting.guarantees import guarantee_of
from privctl.domain.errors import CommandError
from privctl.domain.events import Ledger
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee
from privctl.domain.report import Omission, PrivacyReport
from privctl.integrations.users import Users
from privctl.reports.files import (
    REPORT_SUFFIX,
    checkpoint_artifacts,
    now,
    require_not_weights_or_report,
    versions,
    write_report,
)
from privctl.storage.atomic import require_absent
from privctl.storage.reader import open_checkpoint
from privctl.train.methods.dp_sgd import TUNING

STEP = "external-training"
ASSERTED = AssumptionState.ASSERTED
_OWNER = "no guarantee covers this report itself: it holds the exact number of examples; keep the report to yourself"
_LIBRARIES = ("torch", "transformers", "opacus", "numpy", "scipy", "blake3")


def premises(examples: int, *of_program: Assumption, users: Users) -> Iterator[Assumption]:
    """The assumptions of a guarantee for ``examples`` examples, all asserted, those ``of_program`` first."""
    yield from of_program
    yield from users.premises()
    for name, statement in (
        ("starting weights", "the training began with weights that were made without these examples"),
        (
            "number of examples",
            f"that there are {examples} examples is public: neighbours are compared at the same sampling rate, number "
            "of steps and noise, which follow from it",
        ),
        (
            "other releases",
            "nothing else that is released with the weights, such as a tokenizer, class names, statistics or measures, "
            "depends on the examples",
        ),
    ):
        yield Assumption(name=name, statement=statement, state=ASSERTED)


def usual_warnings(delta: float, examples: int) -> Iterator[str]:
    """That the guarantee is for one run, and where ``delta`` is not well below 1 / ``examples``, that."""
    yield TUNING
    if sentence := delta_warning(delta, examples):
        yield sentence


def guarantee_for(
    ledger: Ledger, delta: float, name: str, assumptions: Sequence[Assumption], note: str, released: Released | None
) -> Guarantee:
    """The guarantee of ``ledger`` at ``delta``. The assumptions of the ledger itself are asserted too.

    Raises CommandError for a ``delta`` out of range.
    """
    try:
        return guarantee_of(
            ledger, delta, name=name, state=ASSERTED, assumptions=assumptions, note=note, released=released
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def report_place(model: Path, output: Path | None, force: bool) -> Path:
    """The path for the report of ``model``: ``output``, or beside it. Raises CommandError for an existing file."""
    name = model.name.removesuffix(".safetensors")
    place = output or model.absolute().with_name(name + REPORT_SUFFIX)
    require_absent(place, force, option="output", forced_by="force=True")
    require_not_weights_or_report(place, but=STEP)
    return place


def write(
    model: Path,
    report_path: Path,
    *,
    program: str,
    parameters: Mapping[str, Any],
    mechanism: Ledger | None = None,
    guarantees: Sequence[Guarantee] = (),
    warnings: Sequence[str] = (),
    omissions: Sequence[Omission] = (),
) -> PrivacyReport:
    """Write the report of the finished ``model`` to ``report_path``, and return it.

    Raises InputError for a ``model`` that is no safetensors file or directory.
    """
    with open_checkpoint(model) as checkpoint:
        outputs = checkpoint_artifacts(checkpoint, report_path)
    report = PrivacyReport(
        step=STEP,
        created=now(),
        versions=versions(_LIBRARIES),
        outputs=outputs,
        parameters={"program": program, **parameters},
        mechanism=mechanism,
        guarantees=tuple(guarantees),
        warnings=(*warnings, _OWNER),
        omissions=tuple(omissions),
    )
    write_report(report_path, report)
    return report
