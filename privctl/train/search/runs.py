"""A private search: several trainings of which the best is released (Liu and Talwar 2019; Papernot and Steinke 2022).

The number of runs and the candidate of each are drawn before the first run, with the operating system's randomness, and
written to a folder next to the output, from which a resumed search reads them. Each run is a training in that folder,
whose report already states the guarantee of the search. Runs that cannot win any more are deleted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from privctl.accounting.runs_law import NumberOfRuns, name_of
from privctl.domain.errors import DivergedError, InputError, NoStepsLeftError
from privctl.domain.progress import Notify
from privctl.domain.report import PrivacyReport
from privctl.parallel import ALONE
from privctl.reports.files import read_report
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.storage.journal import recover
from privctl.train.preparation.places import begun_mark, nothing_to_resume, report_path, require_places, run_folder
from privctl.train.preparation.reading import require_apart, require_none_private
from privctl.train.release.searched import parameters_of, with_earlier
from privctl.train.search.folder import SearchFolder, discard_remains, move_model, released_report
from privctl.train.search.made_before import count_searches, log_search
from privctl.train.settings.candidates import SearchedSettings, candidates_of, searched_by
from privctl.train.settings.request import RetrainRequest
from privctl.train.state.fingerprint import search_fingerprint
from privctl.train.state.run_folder import resumable

#: Trains by one request, and returns its report.
TrainOne = Callable[[RetrainRequest], PrivacyReport]

#: Metrics of a run's last epoch that may be its score: the first that exists counts, and the smallest is best.
_SCORES = ("held_out_loss", "held_out_squared_error")


def run_search(request: RetrainRequest, runs: NumberOfRuns, train: TrainOne, notify: Notify) -> PrivacyReport:
    """Make all runs that were drawn, or the remaining ones of a resumed search, and release the best.

    Returns its report. Raises InputError if no run was drawn or all lost, and whatever ``train`` raises, after
    which the search can be resumed.
    """
    candidates = candidates_of(searched_by(request))
    if not request.resume:
        require_places(request.output, force=request.force)
    place = request.output.with_name(f"{request.output.name}.search")
    discard_remains(place)
    facts = search_fingerprint(request)
    if (held_out := request.data.held_out) is not None:  # private records would choose the run
        require_none_private(request, held_out, "--held-out", ALONE)
    require_apart(request, ALONE)  # each run checks again, but only once a search is logged
    if request.resume and not place.is_dir() and request.output.is_dir():
        raise nothing_to_resume(place, request.output)
    if request.resume:
        folder = SearchFolder.resume(place, facts, len(candidates), request.method.settings)
    else:
        with log_search(request.output, place, facts["data"]["train"], notify):
            folder = SearchFolder.begin(place, facts, runs, len(candidates))
    with folder, resumable():
        if request.resume:
            if (report := released_report(request.output, folder.released)) is not None:
                return _finish(report, folder, notify)
            require_places(request.output, force=request.force)
        return _make_and_release(request, runs, folder, candidates, train, notify)


def _make_and_release(
    request: RetrainRequest,
    runs: NumberOfRuns,
    folder: SearchFolder,
    candidates: SearchedSettings,
    train: TrainOne,
    notify: Notify,
) -> PrivacyReport:
    """Make the remaining runs, release the best, and return its report."""
    for number in range(folder.done, len(folder.order)):
        notify(f"run {number + 1} of {len(folder.order)}")
        try:
            score = score_of(_run_report(request, folder, candidates, number, train))
        except DivergedError as error:  # an outcome like any other, as the noisy weights show it
            notify(f"run {number + 1} loses: {error}")
            score = math.inf
        except NoStepsLeftError:  # an outcome too: the run has no weights to show, and its steps are counted
            notify(f"run {number + 1} loses: all of its steps were begun, and none was saved")
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
            raise _missing_run(folder, folder.best)
        folder.remove()
        if folder.released is not None:
            raise InputError(
                f"the search had released its model, of which it kept no copy, and {request.output} is not that model; "
                "put that back from a copy: another search of these data counts beside this one"
            )
        raise InputError(
            "every run of the search diverged or was lost, so there is no model, and the guarantee covers that "
            "outcome: another search of these data counts beside it; give settings that do not diverge, such as lower "
            "learning rates"
        )
    folder.mark_release(read_report(report_path(best)))
    earlier = max(0, count_searches(request.output, folder.data) - 1)
    amend = partial(with_earlier, search=parameters_of(request, runs), earlier=earlier)
    return _finish(move_model(best, request.output, force=request.force, amend=amend), folder, notify)


def _finish(report: PrivacyReport, folder: SearchFolder, notify: Notify) -> PrivacyReport:
    """Remove the folder of the search, and return the released ``report``."""
    if left := folder.remove():
        notify(left)
    return report


def score_of(report: PrivacyReport) -> float:
    """The score by which a run is chosen, smaller is better; infinite if there is none or it is NaN."""
    history = parameters_as(TrainingParameters, report).history
    last: Mapping[str, float] = history[-1] if history else {}
    score = next((last[name] for name in _SCORES if name in last), math.nan)
    return math.inf if math.isnan(score) else score


def _missing_run(folder: SearchFolder, number: int) -> InputError:
    return InputError(
        f"run {number + 1} of the search was begun, and neither its model nor its state is in {folder.run(number)} any "
        "more; made again it would be one run more than the guarantee counts, so put them back, or remove "
        f"{folder.path}: another search of these data counts beside this one"
    )


def _run_report(
    request: RetrainRequest, folder: SearchFolder, candidates: SearchedSettings, number: int, train: TrainOne
) -> PrivacyReport:
    """The report of a run, which is made, continued, or read if it was finished before the search was interrupted."""
    output = folder.run(number) / request.output.name
    place = report_path(output)
    recover(place.parent)  # a kill may have come between renaming the model and its report
    if place.is_file() and output.is_dir():
        return read_report(place)
    resume = run_folder(output).is_dir()
    if begun_mark(output).exists() and not resume:
        raise _missing_run(folder, number)
    chosen = candidates.combinations[folder.order[number]]
    return train(replace(request, output=output, resume=resume, force=False, **chosen))
