"""Checks a trained model's weights against its report: untrained tensors must be unchanged, others moved as stated."""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.reader import SafetensorsFile
from verify.files.places import located
from verify.methods import expected_of
from verify.methods.dp_zo import ZerothOrderTraining
from verify.weights.adapter_settings import changed_settings
from verify.weights.configuration import changed_entries
from verify.weights.directional import noise_sentence, number_faults, numbers_of, replay
from verify.weights.law import NoiseLaw, law_of
from verify.weights.moves import adam_reach, coefficients, kept, least_noise, noise_reach, noise_sizes, reach, signal
from verify.weights.presence import Presence
from verify.weights.settings import (
    ImpossibleError,
    TrainingFacts,
    UncheckableError,
    UnstatedError,
    facts_of,
    moves_nothing,
    settings_of,
)
from verify.weights.single_tensors import higher_rank, reached_further
from verify.weights.start import Digest, Start, start_of
from verify.weights.tally import Compared, MoveScale, combined_tally, compare

#: Probability that the weights of an honest run are refuted, over all tests.
LEVEL = 1e-6
_SUBJECT = "weights"
#: The most tensors that are named for one fault.
_SHOWN = 5
#: Packages whose version determines which weights a seed gives.
_DRAWN_BY = ("torch", "transformers")
#: The package that reads and writes configurations.
_READER = "transformers"
_TEXTS = (
    "causal-lm", "masked-lm", "seq2seq-lm", "text-classification", "token-classification", "question-answering",
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """The verdicts, evidence and omissions on a model's weights."""

    verdicts: list[Verdict] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)


def check_weights(path: Path, report: PrivacyReport, digest: Digest) -> Found:
    """Rebuild the initial weights of the training reported at ``path``, and compare the released weights with them.

    ``digest`` gives a file's digest. If a file is missing or no bound applies, an omission says so.
    """
    found = Found()
    outputs = [artifact for artifact in report.outputs if artifact.role == "model"]
    if report.step != "retrain" or len(outputs) != 1:
        return found
    output = located(path, outputs[0].path)
    if not os.path.isfile(output) or digest(output) != outputs[0].digest:
        _leave_open(UncheckableError("the model reported is not at hand"), found)
        return found
    _compare_configuration(path, report, output, digest, found)
    try:
        if facts_of(report).converted is not None:
            found.verdicts += _statistics(output)
        start = start_of(path, report, output, digest)
        if start.unknown:
            _leave_open(UncheckableError("other weights of a new adapter are drawn, and are not drawn again"), found)
        _judge(report, start, output, found)
        _along_directions(path, report, start, output, digest, found)
    except UncheckableError as reason:
        _leave_open(reason, found)
    except (ArithmeticError, ValueError) as error:
        _leave_open(UnstatedError(f"the report holds a value that no real run has ({error})"), found)
    return found


def _compare_configuration(path: Path, report: PrivacyReport, output: Path, digest: Digest, found: Found) -> None:
    """Note each entry of the configuration that is not the start's; another transformers may write some otherwise."""
    then, now = report.versions.get(_READER), importlib.metadata.version(_READER)
    try:
        adapter = facts_of(report).adapter
        same = adapter or then == now  # the settings of an adapter are written by privctl itself
        caveat = "" if same else f"; or {_READER} {then} writes it otherwise than {now}, which is installed, reads it"
        outcome = Outcome.REFUTED if same else Outcome.INCONCLUSIVE
        for name, text in (changed_settings if adapter else changed_entries)(path, report, output, digest):
            found.verdicts.append(Verdict(subject=name, outcome=outcome, reason=text + caveat))
    except UncheckableError as fault:
        found.omissions.append(Omission(what="configuration, not compared", reason=str(fault)))


def _leave_open(reason: UncheckableError, found: Found) -> None:
    """Note why the weights are not compared, so that an entry which prevents it does not make them pass."""
    if isinstance(reason, ImpossibleError):
        found.verdicts.append(Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=str(reason)))
    elif isinstance(reason, UnstatedError):
        text = f"{reason}, so the weights could be any training's"
        found.verdicts.append(Verdict(subject=_SUBJECT, outcome=Outcome.INCONCLUSIVE, reason=text))
    else:
        found.omissions.append(Omission(what="how far the training moved the weights", reason=str(reason)))


def _statistics(output: Path) -> Iterator[Verdict]:
    """Refutes the first batch normalisation statistic that is not a new layer's, where all were to be reset."""
    with SafetensorsFile(output) as file:
        for info in file.tensors:
            last = info.name.rpartition(".")[2]
            if last not in ("running_mean", "running_var"):
                continue
            if info.dtype != "F32" or (np.frombuffer(file.read(info), "<f4") != (last == "running_var")).any():
                reason = f"statistics are said to be 0 and 1, and {info.name!r} holds others"
                yield Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=reason)
                return


def _judge(report: PrivacyReport, start: Start, output: Path, found: Found) -> None:
    trained: Sequence[str] | None
    trained, adapted = _trained(report)
    bounds, unmoved = None, moves_nothing(report)
    try:
        settings = None if unmoved else settings_of(report)
        if adapted:
            raise UncheckableError(
                "adapters of low rank were merged into them, which matrices alone show, by a move of no higher rank"
            )
        if settings is not None:
            bounds = _bounds(settings, report)
    except UncheckableError as reason:
        _leave_open(reason, found)
    with SafetensorsFile(output) as file:
        if unmoved:
            trained = None
        elif adapted:
            matrices = [info.name for info in file.tensors if len(info.shape) > 1]
            trained = matrices or ["*"]
        compared = compare(start, file, trained, None if bounds is None else bounds.scale)
        touched = compared.touched[:_SHOWN]
        faults = [f"tensor {name!r} was not trained, but is not what it began as" for name in touched]
        faults += () if unmoved else _of_tensors(report, start, file)
    sentences = [f"the first weights were {start.source}"]
    if compared.still:
        as_begun = "tensor that was not trained is what it", "tensors that were not trained are what they"
        sentences.append(f"{counted(compared.still, *as_begun)} began as")
    if bounds is not None and compared.moved:
        faults += bounds.complaints(compared)
        sentences += bounds.sentences(compared)
        found.evidence.append(bounds.evidence(compared))
    if faults:
        outcome, caveat = (Outcome.REFUTED, "") if start.exact else _of_versions(report)
        found.verdicts += [Verdict(subject=_SUBJECT, outcome=outcome, reason=text + caveat) for text in faults]
    elif compared.still or (bounds is not None and compared.moved):
        found.verdicts.append(Verdict(subject=_SUBJECT, outcome=Outcome.CONSISTENT, reason="; ".join(sentences)))


def _of_tensors(report: PrivacyReport, start: Start, file: SafetensorsFile) -> Iterator[str]:
    """Yields a sentence for each tensor that only other adapters, or longer texts, than are stated can have moved."""
    stated = facts_of(report)
    method = expected_of(stated.method)
    if stated.lora_rank is not None and not stated.adapter:
        yield from islice(higher_rank(start, file, max(0, stated.lora_rank)), _SHOWN)
    elif method is not None and method.by_gradients and stated.max_length is not None and stated.task in _TEXTS:
        with suppress(UncheckableError):  # noted with the bounds
            settings = settings_of(report)
            keep = float(kept(settings)[-1])
            yield from islice(reached_further(start, file, stated.max_length, keep, settings.updates), _SHOWN)


def _along_directions(
    path: Path, report: PrivacyReport, start: Start, output: Path, digest: Digest, found: Found
) -> None:
    """Checks the moves, and the noise in them, of a training along public directions."""
    stated = facts_of(report)
    if not isinstance(stated, ZerothOrderTraining):
        return
    numbers, facts = numbers_of(path, report, stated, digest), settings_of(report)
    wrong = [*number_faults(numbers, facts, stated)]
    found.verdicts += [Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=text) for text in wrong]
    if wrong:
        return
    if _trained(report)[1]:
        raise UncheckableError("adapters of low rank were merged into them, so the moves are not made again")
    if start.unknown:
        raise UncheckableError("the first weights of a new adapter are drawn, so the moves are not made again")
    looked = replay(start, output, numbers, facts, stated)
    outcome, caveat = (Outcome.REFUTED, "") if start.exact else _of_versions(report)
    found.verdicts += [Verdict(subject=_SUBJECT, outcome=outcome, reason=text + caveat) for text in looked.wrong]
    reason = "; ".join((*looked.sentences, noise_sentence(numbers, facts)))
    if not looked.wrong:
        found.verdicts.append(Verdict(subject=_SUBJECT, outcome=Outcome.CONSISTENT, reason=reason))


def _trained(report: PrivacyReport) -> tuple[list[str], bool]:
    """The globs of the trained tensors, and whether they were trained by low-rank adapters that were merged."""
    parameters = facts_of(report)
    if parameters.trained is None:
        raise UnstatedError("the parameters do not say which tensors were trained")
    return list(parameters.trained), parameters.lora_rank is not None and not parameters.adapter


def _of_versions(report: PrivacyReport) -> tuple[Outcome, str]:
    """The outcome if weights do not fit the seed's initial weights: refuted only if those must be the same."""
    for name in _DRAWN_BY:
        then, now = report.versions.get(name), importlib.metadata.version(name)
        if then is None or then.split("+")[0] != now.split("+")[0]:
            return Outcome.INCONCLUSIVE, f"; or {name} {then} draws other first weights than {now}, which is installed"
    return Outcome.REFUTED, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The bounds on the moves of one training.

    ``entry`` bounds the move of one weight and ``whole`` the L2 norm of all moves; None if there is no bound.
    ``presence`` tests the noise; None if there is no noise or its distribution is unknown. ``unseen`` says why it is
    unknown.
    """

    settings: TrainingFacts
    scale: MoveScale
    entry: float | None
    whole: float | None
    presence: Presence | None
    unseen: str = ""

    def complaints(self, compared: Compared) -> Iterator[str]:
        """Yields one sentence per violated bound or rejected test."""
        everything = combined_tally(compared.moved)
        steps = f"{counted(self.settings.updates, 'update')} of {self.settings.optimizer}"
        if self.entry is not None and everything.farthest > self.entry:
            worst = max(compared.moved, key=lambda tally: tally.farthest)
            yield (
                f"a weight of tensor {worst.name!r} moved by {worst.farthest:.4g}, and {steps} as reported move one by "
                f"at most {self.entry:.4g}"
            )
        if self.whole is not None and math.sqrt(everything.low) > self.whole:
            yield (
                f"the weights moved by {math.sqrt(everything.low):.4g} together, and {steps} with gradients clipped "
                f"as reported move them by at most {self.whole:.4g}"
            )
        if self.presence is None:
            return
        if complaint := self.presence.complaint(everything):
            yield f"the noise reported is not in the weights: of the whole model, {complaint}"
            return
        for tally in compared.moved:
            if complaint := self.presence.complaint(tally):
                yield f"the noise reported is not in tensor {tally.name!r}: {complaint}"
                return

    def sentences(self, compared: Compared) -> Iterator[str]:
        """Yields sentences on what was checked and holds, and on what cannot be detected."""
        everything = combined_tally(compared.moved)
        if self.entry is not None:
            count = counted(everything.elements, "weight")
            yield f"none of {count} moved by more than {self.entry:.4g}, the most that the updates allow"
        if self.whole is not None:
            yield f"together they moved by no more than {self.whole:.4g}, the most that clipped gradients allow"
        if self.presence is None:
            yield self.unseen or "the report claims no noise, so none was looked for"
            return
        if self.unseen:
            lower = self.presence.noticed(everything)[0]
            yield f"{self.unseen}; moves of less than {max(lower, 0.0):.3g} times the least of it would be noticed"
            return
        if self.settings.adaptive:
            yield "Adam's moves do not show the noise's size, so an edited noise multiplier is not noticed here"
        else:
            lower, upper = self.presence.noticed(everything)
            least = f"less than {lower:.3g} or " if lower > 0 else ""
            yield (
                f"noise of {least}more than {upper:.3g} times what is reported would be noticed, but not settings that "
                "together give the same noise, such as twice the noise multiplier with half the clip norm"
            )
        if self.presence.visible(everything):
            needed = self.presence.needed(everything.elements)
            yield (
                f"noise is there, so far as a test at a level of {LEVEL:g} can see, which notices where the law of the "
                f"moves differs from that of noise by {needed:.3g} nats a weight or more"
            )
        else:
            yield (
                "whether noise is there cannot be seen: large batches over many steps may outweigh it in every weight, "
                "or rounding hides it"
            )

    def evidence(self, compared: Compared) -> Evidence:
        """The evidence on how far the weights moved, and how far noise alone or the bounds would have moved them."""
        everything = combined_tally(compared.moved)
        details = {"farthest": everything.farthest}
        if self.presence is not None:
            details |= {"noise alone": self.presence.law.scale, "shift of the noise": self.presence.shift}
            details["nats a weight"] = self.presence.divergence(everything.between)
            details["nats a weight that would be noticed"] = self.presence.needed(max(1, everything.elements))
        if self.entry is not None:
            details["most for one weight"] = self.entry
        return Evidence(
            method=f"difference from the first weights, tests at a level of {LEVEL:g} together",
            quantity="root mean square move of the weights",
            estimate=math.sqrt(everything.squares / max(1, everything.elements)),
            bound=Bound.NONE,
            samples={"weights": everything.elements, "tensors": len(compared.moved)},
            details=details,
        )


def _bounds(settings: TrainingFacts, report: PrivacyReport) -> _Bounds:
    """The bounds for this training. Raises UncheckableError if there are none for its method and optimizer."""
    method = expected_of(settings.method)
    if method is not None and (reason := method.unbounded(facts_of(report), settings.adaptive)):
        raise UncheckableError(reason)
    if getattr(facts_of(report), "public_weight", None):
        return _of_adam(
            settings,
            "the gradients of public records, which nothing clips, moved the weights too: no noise is seen there",
        )
    if settings.noise_multiplier:
        return _noised(settings)
    entry = adam_reach(settings) if settings.adaptive else None
    whole = None if settings.adaptive else reach(settings, LEVEL)
    scale = MoveScale(
        keep=float(kept(settings)[-1]), edges=np.empty(0), far=(entry or whole or 0.0), updates=settings.updates
    )
    return _Bounds(settings=settings, scale=scale, entry=entry, whole=whole, presence=None)


def _of_adam(settings: TrainingFacts, unseen: str) -> _Bounds:
    """The bounds that hold for Adam whatever the gradients; ``unseen`` says why there are no others."""
    entry = adam_reach(settings)
    scale = MoveScale(keep=float(kept(settings)[-1]), edges=np.empty(0), far=entry, updates=settings.updates)
    return _Bounds(settings=settings, scale=scale, entry=entry, whole=None, presence=None, unseen=unseen)


def _correlated_with_gaps(settings: TrainingFacts) -> _Bounds:
    """The bounds for correlated noise with lost steps: its distribution is unknown, but not its least size."""
    unseen = "steps were begun and lost, with noise that later steps would have cancelled: its law is not known here"
    if settings.adaptive:
        return _of_adam(settings, unseen)
    least = least_noise(settings)
    # A single interval that contains every weight leaves only the test of norms, against too little noise.
    law = NoiseLaw(edges=np.empty(0), chances=np.ones(1), scale=least)
    presence = Presence(shift=signal(settings, LEVEL / 4), level=LEVEL / 2**23, law=law, stddevs=(least, math.inf))
    alone = float(np.linalg.norm(coefficients(settings))) * settings.noise_stddev / settings.correlation[0]
    scale = MoveScale(keep=float(kept(settings)[-1]), edges=law.edges, far=8 * alone, updates=settings.updates)
    return _Bounds(settings=settings, scale=scale, entry=None, whole=None, presence=presence, unseen=unseen)


def _noised(settings: TrainingFacts) -> _Bounds:
    if settings.gaps and len(settings.correlation) > 1:
        return _correlated_with_gaps(settings)
    unseen, presence = "", None
    stddevs = None
    if settings.adaptive:
        entry = adam_reach(settings)
    else:
        stddevs = noise_sizes(settings)
        # No model has 2^60 weights.
        entry = reach(settings, LEVEL / 4) + noise_reach(settings, LEVEL / 4 / 2**60)
    try:
        law = law_of(settings, LEVEL / 4)
        # Two tests per tensor, and fewer than 2^20 tensors.
        presence = Presence(shift=signal(settings, LEVEL / 4), level=LEVEL / 2**23, law=law, stddevs=stddevs)
    except UncheckableError as reason:
        unseen = f"the noise was not looked for: {reason}"
    return _Bounds(
        settings=settings,
        scale=MoveScale(
            keep=float(kept(settings)[-1]),
            edges=np.empty(0) if presence is None else presence.law.edges,
            far=8 * presence.law.scale if presence is not None else entry,
            updates=settings.updates,
        ),
        entry=entry,
        whole=None,
        presence=presence,
        unseen=unseen,
    )
