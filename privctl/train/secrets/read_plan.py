"""Reads the plan of protection for a private training, and checks it against the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from privctl.data.recorded import data_digest
from privctl.data.texts import identified_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import NOT_ON_TEXTS, TaskName
from privctl.reports.files import FoundReport, report_of
from privctl.secrets.protection import Protection, read_protection
from privctl.storage.digest import file_digest
from privctl.storage.reader import open_checkpoint
from privctl.train.settings.request import RetrainRequest

_PLAN_AGAIN = "plan again with privctl secrets plan"
#: Relative tolerance within which two sums agree.
_CLOSE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlan:
    """A plan of protection with the ``digest`` of its file, and the report that it points to, if that exists."""

    path: Path
    digest: str
    protection: Protection
    report: FoundReport | None

    def check_examples(self, examples: int) -> None:
        """Raise InputError if the data has another number of examples than the plan."""
        planned = self.protection.facts.examples
        if examples != planned:
            raise InputError(f"{self.path} is a plan for {planned} records, but the data has {examples}; {_PLAN_AGAIN}")


def read_secret_plan(request: RetrainRequest) -> SecretPlan | None:
    """The plan of protection of ``request``; None if it has none.

    Raises CommandError for settings that cannot be combined with a plan, InputError for a file that is not a plan, a
    plan without secrets, and one made for other data or for other texts of the data.
    """
    if request.secrets is None:
        return None
    _check_settings(request)
    path, data = request.secrets.plan, request.data.train
    protection = read_protection(path)
    if not protection.ids:
        raise InputError(f"{path} protects no secret; remove --secrets, or {_PLAN_AGAIN}")
    expected, size = math.fsum(protection.probabilities), protection.facts.batch_size
    if not math.isclose(expected, size, rel_tol=_CLOSE):
        raise InputError(
            f"{path} contradicts itself: it states {size:g} records per batch, but its probabilities sum to "
            f"{expected:.6g}; {_PLAN_AGAIN}"
        )
    digest = data_digest(data)
    if digest != protection.facts.data:
        raise InputError(
            f"{path} was made for {protection.facts.data_name} ({protection.facts.data}), but {data} is another file "
            f"or has changed ({digest}); train on the original file, or {_PLAN_AGAIN}"
        )
    columns = replace(request.data.columns, pair=request.task is TaskName.SEQ2SEQ_LM)
    if identified_texts(data, columns)[1] != protection.facts.texts:
        raise InputError(
            f"{path} was made for other texts of {data} than those that would be trained on, in which secrets may lie "
            "elsewhere; name the field of the texts as for privctl secrets scan and plan (--text-column), or "
            f"{_PLAN_AGAIN}"
        )
    with open_checkpoint(path) as file:
        report = report_of(file)
    return SecretPlan(path=path, digest=file_digest(path), protection=protection, report=report)


def _check_settings(request: RetrainRequest) -> None:
    if not request.method.noised:
        raise CommandError(f"--secrets applies to dp-sgd and dpquant, not to {request.method_name}; remove it")
    if request.task in (*NOT_ON_TEXTS, TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING):
        raise CommandError("--secrets needs texts in one file, as privctl secrets plan reads them; remove it")
    if request.data.unit is not None:
        raise CommandError("--unit cannot be combined with --secrets, whose plan draws records one by one; remove one")
