"""A private search: several trainings of which the best is released (Liu and Talwar 2019; Papernot and Steinke 2022).

The number of runs and the candidate of each are drawn before the first run, by the operating system's coins, and
written to a folder beside the output; a search that is resumed reads them. Each run is a training of its own in that
folder, whose report is already that of the search. What loses is deleted once it has lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from privctl.accounting.runs_law import NumberOfRuns, name_of
from privctl.domain.errors import DivergedError, InputError
from privctl.domain.progress import Notify
from privctl.domain.report import PrivacyReport
from privctl.parallel import ALONE
from privctl.reports.files import read_report
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.storage.journal import recover
from privctl.train.preparation.places import begun_mark, nothing_to_resume, report_path, require_places, run_folder
from privctl.train.preparation.reading import require_apart, require_none_private
from privctl.train.release.searched import parameters_of, with_earlier
from privctl.train.search.folder import SearchFolder, discard_remains, moved, standing
from privctl.train.search.made_before import begun, entered
from privctl.train.settings.candidates import SearchedSettings, candidates_of, searched_by
from privctl.train.settings.request import RetrainRequest
from privctl.train.state.fingerprint import search_fingerprint

#: Trains as one request asks, and returns its report.
TrainOne = Callable[[RetrainRequest], PrivacyReport]

#: Measures of a run's last epoch by which it is chosen, the first that there is; the least is best.
_SCORES = ("held_out_loss", "held_out_squared_error")


def run_search(request: RetrainRequest, runs: NumberOfRuns, train: TrainOne, notify: Notify) -> PrivacyReport:
    """Make all runs that were drawn, or are left of a search that is resumed, and release the best.

    Returns its report. Raises InputError where no run was drawn, and what ``train`` raises; the search can be resumed.
    """
    candidates = candidates_of(searched_by(request))
    if not request.resume:
        require_places(request.output, force=request.force)
    place = request.output.with_name(f"{request.output.name}.search")
    discard_remains(place)
    facts = search_fingerprint(request)
    if (held_out := request.data.held_out) is not None:  # private records would choose the run
        require_none_private(request, held_out, "--held-out", ALONE)
    require_apart(request, ALONE)  # each run looks again, when a search is begun that counts
    if request.resume and not place.is_dir() and request.output.is_dir():
        raise nothing_to_resume(place, request.output)
    if request.resume:
        folder = SearchFolder.resume(place, facts, len(candidates), request.method.settings)
    else:
        with entered(request.output, place, facts["data"]["train"], notify):
            folder = SearchFolder.begin(place, facts, runs, len(candidates))
    with folder:
        if request.resume:
            if (report := standing(request.output, folder.released)) is not None:
                return _ended(report, folder, notify)
            require_places(request.output, force=request.force)
        return _searched(request, runs, folder, candidates, train, notify)


def _searched(
    request: RetrainRequest,
    runs: NumberOfRuns,
    folder: SearchFolder,
    candidates: SearchedSettings,
    train: TrainOne,
    notify: Notify,
) -> PrivacyReport:
    """The report of the best run, which is released once all that are left to make are made."""
    for number in range(folder.done, len(folder.order)):
        notify(f"run {number + 1} of {len(folder.order)}")
        try:
            score = score_of(_made(request, folder, candidates, number, train))
        except DivergedError as error:  # an outcome like any other: the noisy weights show it
            notify(f"run {number + 1} loses: {error}")
            score = math.inf
        folder.record(number, score)
    if folder.best is None:
        folder.remove()
        raise InputError(
            f"the search drew no run, as its {name_of(runs.shape)} law does with chance {math.exp(-runs.mean):.2g}; "
            "so there is no model, and the guarantee covers that outcome: another search of these data counts beside "
            "it, and --runs-law geometric always gives a run"
        )
    best = folder.run(folder.best) / request.output.name
    if not report_path(best).is_file():
        if folder.released is None and not folder.diverged:
            raise _gone(folder, folder.best)
        folder.remove()
        if folder.released is not None:
            raise InputError(
                f"the search had released its model, of which it kept no copy, and {request.output} is not that model; "
                "put that back from a copy: another search of these data counts beside this one"
            )
        raise InputError(
            "every run of the search diverged, so there is no model, and the guarantee covers that outcome: another "
            "search of these data counts beside it; give settings that do not diverge, such as lower learning rates"
        )
    folder.releases(read_report(report_path(best)))
    earlier = max(0, begun(request.output, folder.data) - 1)
    amend = partial(with_earlier, search=parameters_of(request, runs), earlier=earlier)
    return _ended(moved(best, request.output, force=request.force, amend=amend), folder, notify)


def _ended(report: PrivacyReport, folder: SearchFolder, notify: Notify) -> PrivacyReport:
    """``report``, which is released, once the folder of the search is gone."""
    if left := folder.remove():
        notify(left)
    return report


def score_of(report: PrivacyReport) -> float:
    """What a run is chosen by, the less the better; infinite where it is no number."""
    history = parameters_as(TrainingParameters, report).history
    last: Mapping[str, float] = history[-1] if history else {}
    score = next((last[name] for name in _SCORES if name in last), math.nan)
    return math.inf if math.isnan(score) else score


def _gone(folder: SearchFolder, number: int) -> InputError:
    return InputError(
        f"run {number + 1} of the search was begun, and neither its model nor its state is in {folder.run(number)} any "
        "more; made again it would be one run more than the guarantee counts, so put them back, or remove "
        f"{folder.path}: another search of these data counts beside this one"
    )


def _made(
    request: RetrainRequest, folder: SearchFolder, candidates: SearchedSettings, number: int, train: TrainOne
) -> PrivacyReport:
    """The report of a run: made now, continued, or read where it was made before the search was interrupted."""
    output = folder.run(number) / request.output.name
    place = report_path(output)
    recover(place.parent)  # a kill may have come between the names of model and report
    if place.is_file() and output.is_dir():
        return read_report(place)
    begun = run_folder(output).is_dir()
    if begun_mark(output).exists() and not begun:
        raise _gone(folder, number)
    chosen = candidates.combinations[folder.order[number]]
    return train(replace(request, output=output, resume=begun, force=False, **chosen))
