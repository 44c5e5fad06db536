"""Compares the training data of a report with the given file: the number of records, and the digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from privctl.data.columns import Columns, columns_of_task
from privctl.domain.events import Ledger
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shared_records import SharedRecords
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import TrainingParameters, readable
from verify.events import row_of
from verify.methods.expected import EXTERNAL, TRAINING

_SUBJECT = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAtHand:
    """Counts taken from the given data; ``examples`` is the number of records or of privacy units.

    ``digests`` are those of its files; a folder of class folders has one. ``possible`` holds the least and the largest
    number of examples that the same selection may give with another solver version, or None if it is deterministic.
    ``similar`` is the number of users whose names are spelled like another's, or None if records have no users.
    """

    name: str
    examples: int
    digests: tuple[str, ...]
    possible: tuple[int, int] | None = None
    similar: int | None = None


def stated(report: PrivacyReport) -> int | None:
    """The number of examples stated in the report, or None."""
    if report.step in (TRAINING, EXTERNAL):
        parameters = readable(TrainingParameters, report)
        return None if parameters is None else parameters.examples
    mechanism = report.mechanism
    training = mechanism.training if isinstance(mechanism, WeightNoise) else mechanism
    return training.dataset_size if isinstance(training, ClippedTraining) else None


def unit_of(report: PrivacyReport) -> str | None:
    """The field that holds the user of a record, if the report names one."""
    parameters = readable(TrainingParameters, report)
    return None if parameters is None else parameters.unit


def columns_of(report: PrivacyReport) -> Columns | None:
    """The columns that the training read from its data; None for reports of other steps."""
    parameters = readable(TrainingParameters, report)
    if report.step != TRAINING or parameters is None:
        return None
    return columns_of_task(parameters.task, parameters.text_column, parameters.label_column)


def record_limit_of(report: PrivacyReport) -> int | None:
    """The stated limit on records per user, or None."""
    parameters = readable(TrainingParameters, report)
    return None if parameters is None else parameters.max_records_per_user


def shared_records_of(report: PrivacyReport) -> SharedRecords | None:
    """The stated rule for records shared by several users; None if there is none or it is unknown."""
    parameters = readable(TrainingParameters, report)
    stated = None if parameters is None else parameters.shared_records
    return SharedRecords(stated) if stated in list(SharedRecords) else None


def check_data(report: PrivacyReport, data: DataAtHand) -> Iterator[Verdict]:
    """Compares the number of examples, the users with similar names, and the digests, as far as they are stated."""
    count = stated(report)
    if count is None:
        yield _verdict(Outcome.INCONCLUSIVE, "the report does not say how many examples there were")
    elif count != data.examples and data.possible is not None and data.possible[0] <= count <= data.possible[1]:
        yield _verdict(
            Outcome.INCONCLUSIVE,
            f"of the records of {data.name} {data.examples} are chosen here, and the report says {count}, as another "
            f"version of the solver may have chosen; no more than {data.possible[1]} are possible",
        )
    elif count != data.examples:
        yield _verdict(
            Outcome.REFUTED,
            f"{data.name} holds {counted(data.examples, 'example')}, and the report says {count}{_rates(report, data)}",
        )
    else:
        yield _verdict(Outcome.PROVED, f"{data.name} holds {counted(count, 'example')}, as the report says")
    yield from _names(report, data)
    recorded = [artifact.digest for artifact in report.inputs if artifact.role == "data"]
    if data.digests and recorded:
        same = sorted(data.digests) == sorted(recorded)
        yield _verdict(
            Outcome.PROVED if same else Outcome.REFUTED, f"{data.name} {_digests_agree(len(recorded), same)}"
        )


def _names(report: PrivacyReport, data: DataAtHand) -> Iterator[Verdict]:
    """Compares the stated number of users whose names differ from another's only in spelling."""
    parameters = readable(TrainingParameters, report)
    stated = None if parameters is None else parameters.similar_names
    if data.similar is None or report.step != TRAINING or (stated is None and not data.similar):
        return
    description = f"{data.similar} of the users in {data.name} have names spelled like another's"
    if stated is None:
        yield _verdict(
            Outcome.INCONCLUSIVE, f"{description}, and the report does not say whether these are different users"
        )
    elif stated != data.similar:
        yield _verdict(Outcome.REFUTED, f"{description}, and the report says {stated}")
    else:
        yield _verdict(Outcome.PROVED, f"{description}, as the report says")


def _digests_agree(files: int, same: bool) -> str:
    if files == 1:
        good, bad = "is what was trained on", "is not what was trained on: its digest differs"
    else:
        good, bad = f"is the {files} files that were trained on", f"is not the {files} files that were trained on"
        bad += ": their digests differ"
    return good if same else bad


def _rates(report: PrivacyReport, data: DataAtHand) -> str:
    """The end of a sentence on what the number means for the sampling rate; "" if the ledger has no single rate."""
    ledger, parameters = report.mechanism, readable(TrainingParameters, report)
    if (
        not isinstance(ledger, Ledger)
        or parameters is None
        or parameters.batch_size is None
        or parameters.plan is not None
    ):
        return ""
    batch = parameters.batch_size
    stated, *others = row_of(ledger.events[0]).chances(ledger.events[0])
    if others:
        return ""
    rate = min(1.0, batch / max(1, data.examples))
    return f": batches of {batch:g} draw each at a rate of {rate:.6g}, where the ledger has {stated:.6g}"


def _verdict(outcome: Outcome, reason: str) -> Verdict:
    return Verdict(subject=_SUBJECT, outcome=outcome, reason=reason)
