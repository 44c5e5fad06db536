"""``privctl.verify``: check what a report promises. The command calls ``report_path_of`` and ``verify_given``."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import DataPaths, FilePath, check_numbers, data_or_none, path_at, path_or_none
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.progress import Notify, Progress, unseen
from privctl.domain.report import Omission, PrivacyReport

if TYPE_CHECKING:
    from privctl.data.several import DataPath
    from verify.files.data import DataAtHand
    from verify.run import Verification
    from verify.settings.public_records import PublicAtHand

#: The seed and the seconds of simulations.
SEED, SECONDS = 0, 20.0


def verify_report(
    report: Path,
    *,
    model: Path | None = None,
    data: DataPath | None,
    text_column: str | None = None,
    public: DataPath | None = None,
    simulate: bool,
    seed: int,
    seconds: float,
    progress: Progress,
    notify: Notify,
) -> Verification:
    """Verify the report at ``report``; its outputs are looked for at ``model`` if that holds the reported weights.

    Raises the errors of ``verify``.
    """
    from privctl.reports.of_model import written_at
    from verify.run import read
    from verify.run import verify as run

    if text_column is not None and data is None and public is None:
        raise CommandError("--text-column is a field of --data or --public; give one of these too, or remove it")
    for flag, value, usual in (("--seed", seed, SEED), ("--seconds", seconds, SECONDS)):
        if value != usual and not simulate:
            raise CommandError(f"{flag} is for simulations; give --simulate too, or remove {flag}")
    claimed = read(report)
    if model is not None:
        claimed = written_at(report, claimed, model)
    counted = None if data is None else _counted(data, claimed, report, text_column)
    mixed = None if public is None else _mixed(public, data, claimed, text_column)
    verification = run(report, claimed, progress=progress, data=counted, public=mixed)
    return _simulated(verification, seed, seconds, notify) if simulate else verification


def report_path_of(given: Path, progress: Progress) -> Path:
    """``given``, or where it is a model the report beside it.

    The report under the model's name comes first, even if its digests do not match, which ``verify_given`` reports.
    Otherwise the weights are hashed and a report with their digests is searched for. Raises InputError for a file that
    is neither a report nor a model, and for a model without a report.
    """
    from privctl.reports.of_model import is_model, report_by_name, reports_at

    if not is_model(given):
        return given
    try:
        named = report_by_name(given)
    except InputError as error:
        raise InputError(f"{given} is neither a report nor a model: {error}") from None
    return named or reports_at((given,), progress)[0]


def verify_given(given: Path, report: Path, **settings: Any) -> Verification:
    """Verify ``report``, which is ``report_path_of(given)``; ``settings`` are the arguments of ``verify_report``.

    If ``given`` is a model whose weights differ from those of the report under its name, a report that matches the
    weights is verified instead. If there is none, the verification of the first report refutes the weights.
    """
    from privctl.reports.of_model import changed_since, reports_at, weight_digests

    if report == given:
        return verify_report(report, **settings)
    notify, verification = settings["notify"], verify_report(report, model=given, **settings)
    fits = True
    if verification.exit_code == ExitCode.REFUTED:
        written = {each.digest for each in verification.report.outputs if each.role == "model"}
        fits = weight_digests(given) == written
    if not fits:
        with suppress(InputError):
            report, fits = reports_at((given,), settings["progress"])[0], True
            verification = verify_report(report, model=given, **settings)
    notify(f"verifying {os.path.relpath(report)}, the report of {given}")
    if not fits:
        notify(changed_since(report, given))
    return verification


def _counted(data: DataPath, report: PrivacyReport, path: Path, text_column: str | None) -> DataAtHand:
    from verify.files.counted_data import count_data
    from verify.files.data import stated
    from verify.run import read

    if stated(report) is None:
        raise CommandError(f"--data {data} cannot be compared: the report states no number of examples; remove --data")
    parents = [path.parent / parent.path for parent in report.parents]
    return count_data(data, [report, *(read(parent) for parent in parents if parent.is_file())], text_column)


def _mixed(public: DataPath, data: DataPath | None, report: PrivacyReport, text_column: str | None) -> PublicAtHand:
    """The public records that were given, also compared with the records at ``data`` where a text is a whole record.

    Images, sounds, pairs, labelled words and questions are not compared, because a record of them is more than a text.
    """
    from privctl.data.contents import first_shared, texts_at
    from privctl.data.count import count_examples, of_texts
    from privctl.data.recorded import recorded_files
    from privctl.models.choices import ONE_TEXT
    from privctl.reports.parameters import TrainingParameters, parameters_as
    from verify.files.counted_data import columns_among
    from verify.settings.public_records import PublicAtHand

    if report.step != "retrain":
        raise CommandError(f"--public {public} is mixed into a training, and the report is of another step; remove it")
    columns, shared = columns_among([report], text_column), None
    task = parameters_as(TrainingParameters, report).task
    if data is not None and task in ONE_TEXT and of_texts(public, columns) and of_texts(data, columns):
        shared = first_shared(texts_at(public, columns), texts_at(data, columns)) is not None
    digests = tuple(file.digest for file in recorded_files(public))
    records = count_examples(public, columns=columns)
    return PublicAtHand(name=public.name, records=records, digests=digests, shared=shared)


def _simulated(verification: Verification, seed: int, seconds: float, notify: Notify) -> Verification:
    from verify.simulate.run import simulate

    notify(f"simulating for about {seconds:g} s")
    simulation = simulate(verification.report, seed=seed, seconds=seconds)
    if simulation is None:
        missing = Omission(what="simulation", reason="no guarantee of this report has a privacy loss to simulate")
        return replace(verification, omissions=(*verification.omissions, missing))
    return replace(verification, simulated=simulation.judged, evidence=(*verification.evidence, *simulation.evidence))


def verify(
    report: FilePath,
    *,
    output: FilePath | None = None,
    simulate: bool = False,
    seed: int = SEED,
    seconds: float = SECONDS,
    data: DataPaths | None = None,
    text_column: str | None = None,
    public: DataPaths | None = None,
    force: bool = False,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
) -> Verification:
    """Recompute the guarantees of ``report``, a report or a model with a report beside it; check its files and noise.

    ``data`` is the training data, whose examples are counted and whose digests are compared, and ``public`` are the
    public records of the training. With ``simulate`` the mechanism is also simulated for about ``seconds``, from
    ``seed``. A report of the verdicts is written only to ``output``, if that is given.

    Returns the verdicts. ``exit_code`` is 0 where everything holds, 1 where a digest, a parameter or a guarantee is
    refuted, and 3 where one is undecided; guarantees marked as claimed do not count. A refuted guarantee is a verdict,
    not an error.

    Raises InputError for a file that is no report, and for a model without one; CommandError for existing files.
    """
    from privctl.data.places import require_inputs
    from privctl.reports.files import require_not_weights_or_report, write_report
    from privctl.storage.atomic import require_absent
    from verify.as_report import as_report

    check_numbers("verify", {"seed": seed, "seconds": seconds})
    place = report_path_of(path_at(report, "report"), progress)
    require_inputs(place, data_or_none(data), data_or_none(public))
    if (written := path_or_none(output)) is not None:
        if os.path.realpath(written) == os.path.realpath(place):
            raise CommandError(f"--output {written} is the report itself, which nothing edits; name another file")
        require_absent(written, force)
        require_not_weights_or_report(written, but="verify")
    found = verify_given(
        Path(report),
        place,
        data=data_or_none(data),
        text_column=text_column,
        public=data_or_none(public),
        simulate=simulate,
        seed=seed,
        seconds=seconds,
        progress=progress,
        notify=notify,
    )
    if written is not None:
        write_report(written, as_report(found, written, seed if simulate else None))
    return found
