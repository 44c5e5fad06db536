"""A protection plan, for the terminal."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.parameters import ProtectionParameters, parameters_as
from privctl.show.text.guarantee import guarantee_text
from privctl.show.text.style import notes, number, paragraph, table

#: What the columns mean.
_MEANT = (
    "cap: largest total weight of a secret's records, per nat of its budget; kept: share of the data that the training "
    "uses; left out: records that are never drawn; largest p: largest probability that a record enters a batch"
)
_BY_FANO = "by Fano: the noise multiplier that Fano's inequality would require"


def secrets_plan_text(report: PrivacyReport, *, verbose: bool = False, quiet: bool = False) -> str:
    """Every cap that was tried; then each guarantee of the plan with its assumptions.

    Assumptions that several guarantees rest on are printed once, with the first of them. ``quiet`` omits the notes.
    Raises ParametersError if the report is not of a protection plan.
    """
    parameters = parameters_as(ProtectionParameters, report)
    secrets = counted(parameters.secrets or 0, "secret")
    lines = [
        paragraph(
            f"{secrets} in {parameters.records_with_a_secret} of {counted(parameters.dataset_size or 0, 'record')}; "
            f"{counted(parameters.steps or 0, 'step')} of {parameters.batch_size:g} expected records"
        )
        + "\n"
    ]
    # Reports of older versions have only the noise by Fano's inequality.
    by_curve = parameters.calibration == "curve"
    rows = [
        [
            "none" if entry.cap is None else number(entry.cap, 4),
            f"{100 * entry.kept:.4g} %",
            str(entry.held_out),
            number(entry.largest_probability, 4),
            number(entry.noise_multiplier, 6),
            *([number(entry.fano_noise_multiplier, 6)] if by_curve else []),
            *([f"{entry.gap:.1e}", f"{entry.seconds:.1f}"] if verbose else []),
        ]
        for entry in parameters.caps
    ]
    noise = ["noise multiplier", *(["by Fano"] if by_curve else [])]
    lines.append(table(["cap", "kept", "left out", "largest p", *noise, *(["gap", "s"] if verbose else [])], rows))
    lines.append(paragraph(_MEANT + (f"; {_BY_FANO}." if by_curve else "."), indent=2, hanging=2))
    for i, guarantee in enumerate(report.guarantees):
        lines.append("\n" + guarantee_text(guarantee, named=True, verbose=verbose, printed=report.guarantees[:i]))
    lines += [paragraph(f"not tried: {omission.what}: {omission.reason}") for omission in report.omissions]
    if not quiet:
        lines += ["\n", notes(report.warnings)]
    return "".join(lines)
