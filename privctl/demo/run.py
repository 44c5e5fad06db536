"""Run the demonstration: train with clipped gradients, add noise at several epsilons, train privately, attack all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audits.membership.request import MembershipRequest
from audits.places import output_paths
from audits.scores.perplexity import perplexity
from audits.whole.log_entry import log_path
from audits.whole.request import AuditRequest
from audits.whole.run import run_audit
from privctl.data.records import read_records
from privctl.demo.model import NOTES, DemoFiles, one_thread, prepare, private_request, train_privately
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Adjacency, Guarantee, Scope
from privctl.domain.mechanism import Calibration, Regime
from privctl.domain.progress import Progress
from privctl.domain.report import PrivacyReport
from privctl.models.language import load_model
from privctl.noise.candidates import Candidate, NoiseRelease, noise_premises, plan_candidates
from privctl.noise.dp_weights import Premises, PrivacyTarget, default_delta
from privctl.noise.facts import TRAINING_ROUNDING, from_report, training_facts
from privctl.noise.placement import companions
from privctl.noise.privatize import PERPLEXITY, perplexity_of, privatize
from privctl.noise.selection import select
from privctl.reports.files import report_of
from privctl.storage.reader import open_checkpoint

#: Claimed epsilons; the published formula's noise barely depends on them.
EPSILONS = (100.0, 10.0, 1.0, 0.3)
#: An epsilon that follows for any loss, by noise calibrated to the sensitivity.
ANY_LOSS_EPSILON = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """One model of the demonstration; the first, trained without noise, has no guarantee.

    ``noise_stddev`` is the standard deviation of the noise added to the finished weights, None for the model trained
    with DP-SGD. ``perplexity`` is on non-members, ``auc`` the AUC of the loss attack.
    """

    model: Path
    noise_stddev: float | None
    target: PrivacyTarget | None
    guarantees: tuple[Guarantee, ...]
    perplexity: float | None
    auc: Evidence


def run_demo(folder: Path, seed: int, progress: Progress, *, notes: int = NOTES) -> tuple[DemoModel, ...]:
    """Write all files to ``folder``, which must exist, and return the models in the order of the table.

    ``notes`` records are generated from ``seed``; about half of them are trained on. Raises CommandError if ``folder``
    already contains a demonstration.
    """
    with one_thread():
        return tuple(_models(folder, seed, progress, notes))


def _models(folder: Path, seed: int, progress: Progress, notes: int) -> Iterator[DemoModel]:
    files = prepare(folder, progress, seed=seed, notes=notes)
    texts = [record.text for record in read_records(files.nonmembers)]

    def evaluate(weights: Path) -> float:
        return perplexity(load_model(weights, folder=files.model, device="cpu"), texts)

    released = list(_releases(files, evaluate, progress))
    delta = default_delta(files.dataset_size)
    private = train_privately(files, delta, progress)
    models = [
        files.model,
        *(candidate.path for candidate, _ in released),
        private_request(files, delta).output,
    ]
    auc_by_model = dict(zip(models, _attack(files, models, progress), strict=True))
    yield DemoModel(
        model=files.model,
        noise_stddev=0.0,
        target=None,
        guarantees=(),
        perplexity=evaluate(files.model),
        auc=auc_by_model[files.model],
    )
    for candidate, report in released:
        yield DemoModel(
            model=candidate.path,
            noise_stddev=candidate.stddev,
            target=candidate.target,
            guarantees=candidate.guarantees,
            perplexity=perplexity_of(report),
            auc=auc_by_model[candidate.path],
        )
    yield DemoModel(
        model=models[-1],
        noise_stddev=None,
        target=None,
        guarantees=private.guarantees,
        perplexity=evaluate(models[-1]),
        auc=auc_by_model[models[-1]],
    )


def _releases(
    files: DemoFiles, evaluate: Callable[[Path], float], progress: Progress
) -> Iterator[tuple[Candidate, PrivacyReport]]:
    """Write the models with the published formula's noise, one per claimed epsilon, then one with calibrated noise."""
    with open_checkpoint(files.model) as checkpoint:
        own_report = report_of(checkpoint)
        source = from_report(own_report.path, own_report.report) if own_report else None
        if own_report is None or source is None:
            raise RuntimeError(f"{files.model} was saved without its report")
        training, trust = training_facts([source])
        delta = default_delta(training.dataset_size)
        selection = select(checkpoint)
        release = NoiseRelease(
            checkpoint=checkpoint,
            training=training,
            selection=selection,
            premises=Premises(assumptions=(trust, TRAINING_ROUNDING, noise_premises(None), *selection.assumptions)),
            companions=companions(checkpoint),
            targets=tuple(PrivacyTarget(epsilon=epsilon, delta=delta) for epsilon in EPSILONS),
            model_report=own_report,
        )
        calibrated = PrivacyTarget(
            epsilon=ANY_LOSS_EPSILON, delta=delta, calibration=Calibration.GAUSSIAN, regime=Regime.NONCONVEX
        )
        with progress("noise", 2 * sum(file.size for file in checkpoint.files), "bytes") as advance:
            for request, output in (
                (release, None),
                (replace(release, targets=(calibrated,)), files.model.with_name("model.any-loss")),
            ):
                candidates = plan_candidates(request, output)
                reports = privatize(
                    request, candidates, advance=advance, evaluate=lambda path: {PERPLEXITY: evaluate(path)}
                )
                yield from zip(candidates, reports, strict=True)


def _attack(files: DemoFiles, models: Sequence[Path], progress: Progress) -> Iterator[Evidence]:
    """The loss attack's AUC on each model; every audit writes its report, scores and log."""
    for model in models:
        report_path, scores_path = output_paths(model, None)
        log = log_path(report_path, None)
        request = AuditRequest(
            model=model,
            report=report_path,
            scores=scores_path,
            membership=MembershipRequest(members=files.members, nonmembers=files.nonmembers),
            device="cpu",
            log=log,
        )
        report = run_audit(request, progress)
        assert report is not None  # there is one process
        yield next(e for e in report.evidence if (e.method, e.quantity) == ("loss", "AUC"))


def guarantee_under(model: DemoModel, regime: Regime) -> Guarantee | None:
    """The guarantee of noise on finished weights under ``regime`` for replacing one example; None if there is none."""
    return next(
        (g for g in model.guarantees if g.name == regime and g.adjacency is Adjacency.REPLACE_ONE),
        None,
    )


def guarantee_for_any_loss(model: DemoModel) -> Guarantee | None:
    """The guarantee for any loss: for replacing one example (noise on weights), or DP-SGD's own; None if none."""
    if model.noise_stddev is None:
        return next((g for g in model.guarantees if g.scope is Scope.THIS_MODEL), None)
    return guarantee_under(model, Regime.NONCONVEX)
