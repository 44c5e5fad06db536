"""Finds the reports of a model beside it; a report is about a model only if the digests of its weights match."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.progress import Advance, Notify, Progress, silent
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.chain import ReportFile, ReportFiles, absolute_path, path_of
from privctl.reports.files import REPORT_SUFFIX, FoundReport, pointer_of, relative, report_beside
from privctl.storage.digest import file_digest
from privctl.storage.reader import open_checkpoint

#: Steps that examine a model and do not create one.
_EXAMINING = ("audit", "verify")
#: Most files that are read to find a model's reports.
_MOST_FILES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsOfModel:
    """``own`` is the report of the step that created the model; ``examining`` those of its audits and verifications.

    ``outdated`` are audits and verifications of the same files when they held other weights; ``unrelated`` are reports
    that have the default name of its own or its audit's report, but are about another model.
    """

    own: Path
    examining: tuple[Path, ...] = ()
    outdated: tuple[Path, ...] = ()
    unrelated: tuple[Path, ...] = ()

    @property
    def all(self) -> tuple[Path, ...]:
        """The reports about the model, its own first."""
        return (self.own, *self.examining)


def is_model(path: Path) -> bool:
    """Whether ``path``, given in place of a report, is a folder or a file of tensors."""
    return path.is_dir() or path.suffix == ".safetensors"


def weight_bytes(model: Path) -> int:
    """The total size of all weight files, for a progress bar; raises InputError if there is no model."""
    with open_checkpoint(model) as checkpoint:
        return sum(file.size for file in checkpoint.files)


def weight_digests(model: Path, advance: Advance = silent) -> frozenset[str]:
    """The digests of all weight files; raises InputError if there is no model."""
    with open_checkpoint(model) as checkpoint:
        return frozenset(file_digest(file.path, advance) for file in checkpoint.files)


def reports_of(model: Path, weights: frozenset[str]) -> ReportsOfModel:
    """The reports about exactly these ``weights`` beside ``model``, inside it, and at the path that its header names.

    Raises InputError unless exactly one of them is the report of the step that wrote the weights.
    """
    read, found = _reports_near(model)
    own = [file for file in found.values() if file.report is not None and _weights(file.report.outputs) == weights]
    if len(own) > 1:
        names = ", ".join(sorted(file.path.name for file in own))
        raise InputError(f"{len(own)} reports say that they made {model} ({names}); give the one that is meant")
    if not own:
        examined = [os.path.relpath(path) for path in _examiners(found, weights)]
        raise InputError(f"no report beside {model} was written with these weights; {_advice(model, read, examined)}")
    about = {own[0].digest}
    for _ in _EXAMINING:  # first reports about the model or its own report, then verifications of those
        about |= {d for d, file in found.items() if file.report is not None and _examines(file.report, weights, about)}
    examining = tuple(file.path for digest, file in found.items() if digest in about and file is not own[0])
    outputs = () if own[0].report is None else own[0].report.outputs
    places = _weight_places(own[0].path, outputs)
    outdated = tuple(
        file.path for digest, file in found.items()
        if digest not in about and file.report is not None and file.report.step in _EXAMINING
        and _weight_places(file.path, file.report.inputs) == places
    )  # fmt: skip
    unrelated = tuple(
        place for place in _named_after(model)
        if read[place].digest in found.keys() - about and read[place].path not in outdated
    )  # fmt: skip
    return ReportsOfModel(own=own[0].path, examining=examining, outdated=outdated, unrelated=unrelated)


def audits_without_own_report(model: Path, weights: frozenset[str]) -> tuple[Path, ...]:
    """Audits and verifications of exactly these ``weights`` beside ``model``, if it has no report of its own.

    Empty if a file exists at the path of its own report, whatever it is about, or if any report wrote the weights.
    """
    read, found = _reports_near(model)
    if any(read[place].digest is not None for place in _expected(model)):
        return ()
    if any(file.report is not None and _weights(file.report.outputs) == weights for file in found.values()):
        return ()
    return _examiners(found, weights)


def _reports_near(model: Path) -> tuple[dict[Path, ReportFile], dict[str, ReportFile]]:
    """The files at all paths where reports of ``model`` may be, by path, and the reports among them, by digest."""
    files = ReportFiles()
    read = {place: files.at(place) for place in report_places(model)}
    found: dict[str, ReportFile] = {}
    for file in read.values():
        if file.digest is not None and file.report is not None:
            found.setdefault(file.digest, file)  # a copy is the same report
    return read, found


def _examiners(found: Mapping[str, ReportFile], weights: frozenset[str]) -> tuple[Path, ...]:
    """The reports in ``found`` that examine these weights directly."""
    return tuple(
        sorted(
            file.path for file in found.values()
            if file.report is not None and _examines(file.report, weights, set())
        )
    )  # fmt: skip


def own_reports(model: Path, weights: frozenset[str] | None = None) -> tuple[FoundReport, ...]:
    """The reports beside ``model`` of steps that wrote its weights: one, unless somebody wrote another.

    ``weights`` are the digests of its weights, if they are known; else they are read if a report is beside them.
    """
    try:
        places = [place for place in report_places(model) if os.path.isfile(place)]
        if weights is None:
            weights = weight_digests(model) if places else frozenset[str]()
    except PrivctlError:
        return ()
    found: dict[str, FoundReport] = {}
    for file in map(ReportFiles().at, places):
        if file.digest is not None and file.report is not None and _weights(file.report.outputs) == weights:
            found.setdefault(file.digest, FoundReport(file.path, file.report))  # a copy is the same report
    return tuple(found.values())


def report_by_name(model: Path) -> Path | None:
    """The report beside ``model`` that lists its files as outputs, whatever they hold now; weights are not read.

    None if there is no such report, or if there are several different ones.
    """
    with open_checkpoint(model) as checkpoint:
        weights = {absolute_path(file.path) for file in checkpoint.files}
    files = ReportFiles()
    found: dict[str, Path] = {}
    for place in report_places(model):
        file = files.at(place)
        outputs = () if file.report is None else file.report.outputs
        if file.digest is not None and _weight_places(place, outputs) == weights:
            found.setdefault(file.digest, file.path)
    return next(iter(found.values())) if len(found) == 1 else None


def written_at(path: Path, report: PrivacyReport, model: Path) -> PrivacyReport:
    """The ``report`` at ``path`` with the paths that its outputs have at ``model``, if that is it renamed or copied.

    Returned unchanged if the weights at ``model`` are not those that the report wrote.
    """
    recorded = [each for each in report.outputs if each.role == "model"]
    with open_checkpoint(model) as checkpoint:
        files = [absolute_path(file.path) for file in checkpoint.files]
    before = _weight_places(path, report.outputs)
    if before == set(files):
        return report
    found = {file_digest(file): file for file in files}
    if not recorded or found.keys() != {each.digest for each in recorded}:
        return report
    old, new = path_of(path, recorded[0]).parent, files[0].parent

    def moved(each: Artifact) -> Artifact:
        place = path_of(path, each)
        if each.role == "model":
            place = found[each.digest]
        elif each.role == "companion" and place.is_relative_to(old):
            place = new / place.relative_to(old)
        return replace(each, path=relative(place, path))

    return replace(report, outputs=tuple(map(moved, report.outputs)))


def changed_since(report: Path, model: Path) -> str:
    """The message for a ``report`` that belongs to ``model`` only by the names of its files."""
    return (
        f"{os.path.relpath(report)} names the files of {model}, but the digest of its weights is another: they were "
        "changed or replaced after it was written"
    )


def _examines(report: PrivacyReport, weights: frozenset[str], about: set[str | None]) -> bool:
    """Whether ``report`` examines these weights, or reports with digests in ``about`` if it lists no weights."""
    if report.step not in _EXAMINING:
        return False
    looked_at = _weights(report.inputs)
    return looked_at == weights if looked_at else any(parent.digest in about for parent in report.parents)


def _weights(artifacts: tuple[Artifact, ...]) -> frozenset[str]:
    return frozenset(artifact.digest for artifact in artifacts if artifact.role == "model")


def _weight_places(report: Path, artifacts: tuple[Artifact, ...]) -> set[Path]:
    """The paths of the weights among ``artifacts`` of a report at ``report``."""
    return {path_of(report, each) for each in artifacts if each.role == "model"}


def _named_after(model: Path) -> tuple[Path, Path]:
    """The default paths of the report of ``model`` and of its audit's report."""
    own = report_beside(absolute_path(model))
    return own, own.with_name(f"{own.name.removesuffix(REPORT_SUFFIX)}.audit{REPORT_SUFFIX}")


def _expected(model: Path) -> tuple[Path, ...]:
    """The path of the report of ``model`` in its header, if that names one, and the default path."""
    with open_checkpoint(model) as checkpoint:
        named = pointer_of(checkpoint)
    beside = report_beside(absolute_path(model))
    return (beside,) if named is None else (named, beside)


def report_places(model: Path) -> Iterator[Path]:
    """All paths where reports of ``model`` may be: by its header, by its name, beside it, and inside its folder."""
    place = absolute_path(model)
    places = dict.fromkeys((*_expected(model), *_named_after(model)))
    folders = [path.parent for path in places if path.parent.is_dir()] + [place] * place.is_dir()
    for folder in dict.fromkeys(folders):
        try:
            places |= dict.fromkeys(sorted(folder.glob(f"*{REPORT_SUFFIX}")))
        except OSError as error:
            raise InputError(f"{folder} cannot be searched for reports: {error.strerror}; name the report") from None
    if len(places) > _MOST_FILES:
        raise InputError(f"more than {_MOST_FILES} reports lie beside {model}; name the one that is meant")
    yield from places


def _advice(model: Path, read: dict[Path, ReportFile], examined: Sequence[str]) -> str:
    """What to do if no report matches; a report at an expected path may be damaged, or about other weights.

    ``examined`` are reports of audits of these weights.
    """
    expected = next((read[place] for place in _expected(model) if read[place].digest is not None), None)
    if expected is None and examined:
        return (
            f"{' and '.join(examined)} only examined them; give the report that was written with it, NAME.report.json, "
            f"or if there is none, give {'that audit' if len(examined) == 1 else 'one of these'} by name"
        )
    if expected is None:
        return (
            "give the report that was written with it, NAME.report.json; if there is none, nothing is known of what "
            "the model reveals, so treat it as you treat its training data"
        )
    if expected.report is None:
        return f"{expected.fault}"
    return f"{expected.path.name} is about other weights, so restore the model or give the report that fits"


def _size_of(path: Path) -> int:
    try:
        return weight_bytes(path)
    except InputError as error:
        raise InputError(f"{path} is neither a report nor a model: {error}") from None


def reports_at(
    paths: Sequence[Path],
    progress: Progress,
    notify: Notify = lambda _: None,
    *,
    known: Mapping[Path, frozenset[str]] | None = None,
    by_name: bool = False,
    examined: bool = False,
) -> tuple[Path, ...]:
    """``paths`` without repeats, with each model replaced by the reports beside it that match its weights, own first.

    ``known`` are the weight digests of models that were read already. With ``by_name``, a model without a matching
    report is replaced by the report that lists its files. With ``examined``, a model without a report of its own is
    replaced by its audits. Otherwise raises InputError if a model has no report of its own, or several.
    """
    found: dict[Path, tuple[Path, ...]] = {}
    for path in dict.fromkeys(filter(is_model, paths)):
        weights = (known or {}).get(path)
        if weights is None:
            with progress("digests", _size_of(path), "bytes") as advance:
                weights = weight_digests(path, advance)
        try:
            reports = reports_of(path, weights)
        except InputError:
            if by_name and (named := report_by_name(path)) is not None:
                found[path] = (_as_given(named, path),)
                notify(changed_since(named, path))
                continue
            if not examined or not (audits := audits_without_own_report(path, weights)):
                raise
            found[path] = tuple(_as_given(audit, path) for audit in audits)
            notify(f"nothing beside {path} says how it was made; what examined it: {_listed(audits)}")
            continue
        found[path] = tuple(_as_given(report, path) for report in reports.all)
        notify(f"the reports of {path}: {_listed(reports.all)}")
        if reports.outdated:
            notify(
                f"left out, because the weights have changed since: {_listed(reports.outdated)}; run what wrote them "
                "again"
            )
        if reports.unrelated:
            notify(f"left out, not about this model: {_listed(reports.unrelated)}")
    every = (each for path in paths for each in found.get(path, (path,)))
    return tuple({absolute_path(path): path for path in every}.values())


def _as_given(report: Path, model: Path) -> Path:
    """``report`` relative to the current folder if ``model`` was given so: annotations in CI need such paths."""
    return report if model.is_absolute() else Path(os.path.relpath(report))


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(os.path.relpath, paths))
