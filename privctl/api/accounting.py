"""``privctl.account``: plan a privacy budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import DataPaths, FilePath, as_tuple, check_numbers, data_or_none, path_or_none
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError
from privctl.domain.events import EVENTS
from privctl.domain.progress import Notify
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from privctl.plan.accountants import BudgetPlan


def plan_budget(
    options: dict[str, Any],
    given: set[str],
    data: CountedData,
    *,
    ready: Callable[[], None],
    notify: Notify,
) -> BudgetPlan:
    """The plan that the options of ``privctl account`` ask for.

    Where ``data`` has a path, its number of examples is added to ``options`` and ``given`` as ``dataset_size``.
    ``ready`` is called once options and inputs are checked, before anything is counted or computed, so that the caller
    can check the outputs. Raises the errors of ``account``.
    """
    from privctl.data.places import require_inputs
    from privctl.plan.request import planner_of

    data.check(options["dataset_size"])
    if data.path is None:
        planner = planner_of(options, given, notify)
        ready()
        return planner()
    # Check the options with a made-up number of examples first, because counting takes long.
    planner_of({**options, "dataset_size": options["batch_size"] or 1}, {*given, "dataset_size"}, lambda _: None)
    require_inputs(data.path)
    ready()
    options["dataset_size"] = data.count(notify)
    given.add("dataset_size")
    return planner_of(options, given, notify)()


#: Bytes of data from which counting takes seconds, so that it is announced.
_LARGE = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedData:
    """Data to count the examples of, or the owners of records where ``unit`` names the field of the owner.

    ``path`` is None without data. ``text_column`` is the field of the texts, where it is none of the default ones.
    """

    path: DataPath | None
    unit: str | None
    text_column: str | None

    def check(self, stated: int | None) -> None:
        """Raise CommandError for settings that do not go together; ``stated`` is ``--dataset-size``."""
        for flag, value in (("--unit", self.unit), ("--text-column", self.text_column)):
            if self.path is None and value is not None:
                raise CommandError(f"{flag} says what is counted in --data; give both, or remove it")
        if self.path is not None and stated is not None:
            raise CommandError("--dataset-size is counted in --data; remove one")

    def count(self, notify: Notify) -> int:
        """The number of examples, or owners. Raises CommandError or InputError for data that cannot be read."""
        from privctl.data.columns import Columns
        from privctl.data.count import count_examples, similar_names_at
        from privctl.data.names import alike
        from privctl.data.several import paths_of

        assert self.path is not None
        columns = Columns(text=self.text_column)
        large = sum(path.stat().st_size for path in paths_of(self.path) if path.is_file())
        if large >= _LARGE:
            notify(f"counting the examples in {self.path}, which has {large / 1e9:.2g} GB")
        size = count_examples(self.path, self.unit, columns)
        if self.unit is not None and (similar := similar_names_at(self.path, self.unit, columns)):
            notify(alike(similar, self.unit))
        grouping = "" if self.unit is None else f", each all records with one value of {self.unit!r}"
        notify(f"counted in {self.path}: {counted(size, 'example')}{grouping}")
        return size


def account(
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    dataset_size: int | None = None,
    data: DataPaths | None = None,
    unit: str | None = None,
    text_column: str | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    batches: str = "poisson",
    mechanism: str = "gaussian",
    priors: float | Sequence[float] = (),
    ledger: FilePath | Sequence[FilePath] = (),
    methods: str | Sequence[str] = (),
    no_peers: bool = False,
    output: FilePath | None = None,
    force: bool = False,
    notify: Notify = lambda _: None,
    **of_mechanism: Any,
) -> PrivacyReport:
    """Find the noise that ``epsilon`` needs, or the epsilon that given noise yields.

    ``noise_multiplier`` is the noise standard deviation / clip norm, ``sample_rate`` the probability that a step uses
    an example (1 by default) and ``steps`` the number of steps (1 by default). ``dataset_size``, ``batch_size``
    (examples) and ``epochs`` may be given instead of rate and steps; ``delta`` is then by default the smaller of 1e-5
    and 1 / ``dataset_size``^1.1. ``data`` is a file or folder whose records are counted for ``dataset_size``; with
    ``unit``, the field that names the owner of a record, the owners are counted. ``text_column`` is the field of the
    texts. ``mechanism`` and ``batches`` have the names of the command line, and ``of_mechanism`` are the options of one
    mechanism, such as ``scale`` of ``laplace``. ``ledger`` is a JSON file of events, or the report of a private
    training; several are composed. ``no_peers`` leaves out other packages' accountants (importing Opacus takes
    seconds).

    Returns the report of the plan. It has a guarantee for each method; its parameters name the guarantee to rely on,
    and ``parameters["found"]`` is the noise or epsilon that was found. The report is written only to ``output``, if
    that is given.

    Raises CommandError for options that are missing, out of range or do not go together, and InputError for a ledger or
    data that cannot be read.
    """
    from privctl.plan.request import report_for
    from privctl.reports.files import require_not_weights_or_report, write_report
    from privctl.storage.atomic import require_absent

    event_options = {
        option.parameter: () if option.repeatable else None for kind in EVENTS.values() for option in kind.options
    }
    if unknown := sorted(of_mechanism.keys() - event_options.keys()):
        named = (
            parameter
            for parameter in signature(account).parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        )
        known = sorted({*event_options, *(parameter.name for parameter in named)})
        close = get_close_matches(unknown[0], known, n=1)
        meant = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        raise CommandError(f"account has no argument {unknown[0]!r}; {meant}")
    stated = {name: as_tuple(value) if event_options[name] == () else value for name, value in of_mechanism.items()}
    options = {
        "epsilon": epsilon, "noise_multiplier": noise_multiplier, "delta": delta, "sample_rate": sample_rate,
        "steps": steps, "dataset_size": dataset_size, "batch_size": batch_size, "epochs": epochs, "batches": batches,
        "mechanism": mechanism, "priors": as_tuple(priors), "ledger": tuple(map(str, as_tuple(ledger))),
        "methods": as_tuple(methods), "no_peers": no_peers, **event_options, **stated,
    }  # fmt: skip
    defaults = {"batches": "poisson", "mechanism": "gaussian", "no_peers": False}
    given = {name for name, value in options.items() if value not in (None, ()) and value != defaults.get(name)}
    check_numbers("account", options)
    place = path_or_none(output)

    def ready() -> None:
        if place is not None:
            require_absent(place, force)
            require_not_weights_or_report(place, but="account")

    counted_data = CountedData(path=data_or_none(data), unit=unit, text_column=text_column)
    plan = plan_budget(options, given, counted_data, ready=ready, notify=notify)
    report = report_for(plan, options, given, place or Path("plan.report.json"))
    if place is not None:
        write_report(place, report)
    return report
