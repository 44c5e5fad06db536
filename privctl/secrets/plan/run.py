"""Runs ``privctl secrets plan``: reads the secrets, tries the caps, and writes the plan of one cap with its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from privctl.accounting.deltas import delta_warning
from privctl.data.places import require_inputs
from privctl.domain.errors import CommandError
from privctl.domain.progress import Progress
from privctl.domain.report import PrivacyReport
from privctl.reports.files import commit_with_report, report_beside
from privctl.secrets.plan.report import report_of
from privctl.secrets.plan.sweep import PlanRequest, caps_to_sweep, protection_of, read_problem, sweep_caps
from privctl.secrets.protection import require_no_other_tensors, staged_protection
from privctl.storage.atomic import require_absent, require_regular


def plan(
    request: PlanRequest,
    caps: Sequence[float | None] | None,
    output: Path | None,
    progress: Progress,
    *,
    force: bool,
    notify: Callable[[str], None],
) -> PrivacyReport:
    """Plan the protection for each of ``caps``, None for a sweep, and write the plan of a single cap to ``output``.

    ``notify`` is called if delta protects little. Raises CommandError for incompatible settings, and for existing files
    unless ``force``; InputError for data and secrets for which there is no plan.
    """
    single_cap = caps is not None and len(caps) == 1
    if output is not None:
        _require_writable(output, single_cap=single_cap)
    require_inputs(request.data, request.secrets)
    if output is not None:
        require_regular(output)
        require_absent(output, force)
        require_no_other_tensors(output)
        require_absent(report_beside(output), force)
    problem = read_problem(request)
    if request.delta is not None and (sentence := delta_warning(request.delta, problem.examples)):
        notify(sentence)
    sweep = sweep_caps(problem, caps_to_sweep(problem) if caps is None else caps, progress, strict=single_cap)
    if output is None:
        return report_of(problem, sweep, None)
    chosen, report_path = protection_of(problem, sweep.tried[0]), report_beside(output)
    with staged_protection(output, chosen, report_path) as written:
        report = report_of(problem, sweep, chosen, written)
        commit_with_report([written], report_path, report, replace=force)
    return report


def _require_writable(output: Path, *, single_cap: bool) -> None:
    if not single_cap:
        raise CommandError(
            "--output writes the plan of a single --cap; compare several without it, then give the best one"
        )
    if output.suffix != ".safetensors":
        raise CommandError(
            f"--output {output} does not end in .safetensors; a plan is a safetensors file, so name it so"
        )
