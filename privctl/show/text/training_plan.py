"""A planned training, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.training_plan import TrainingPlan
from privctl.show.text.style import bound, notes, number, paragraph, size, table


def plan_text(plan: TrainingPlan) -> str:
    """What the run would do, what other budgets would give, and warnings."""
    parts = [table(["planned", ""], [[name, value] for name, value in _lines(plan)])]
    if plan.budgets:
        rows = [[number(budget.epsilon), number(budget.amount, 4)] for budget in plan.budgets]
        parts += [paragraph("What each budget gives, all else equal:"), table([_unit(plan), plan.amount_name], rows)]
    if plan.user_bounds:
        parts += [paragraph("What a bound on the records of each user keeps and costs:"), _bounds(plan)]
    parts.append(notes(plan.warnings))
    return "\n".join(parts)


def _bounds(plan: TrainingPlan) -> str:
    rules = sorted(plan.user_bounds[0].records)
    named = [f"{rule} keeps" if rule != "records" else rule for rule in rules]
    rows = [
        [
            str(user_bound.most),
            *("refused" if (kept := user_bound.records[rule]) is None else str(kept) for rule in rules),
            bound(user_bound.epsilon, 4),
            number(user_bound.amount, 4),
        ]
        for user_bound in plan.user_bounds
    ]
    return table(["records of a user", *named, "epsilon", plan.amount_name], rows)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, such as 5 min."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _unit(plan: TrainingPlan) -> str:
    return "nats" if plan.delta is None else "epsilon"


def _lines(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    yield "method", plan.method
    sampled = "examples" if plan.unit else "records"
    yield sampled, f"{plan.records}"
    if plan.unit:
        yield "one example", plan.unit
    yield "trained numbers", f"{plan.trained}"
    yield "steps", f"{plan.steps}"
    yield f"{sampled} per step", f"{plan.batch_size:g}"
    yield "sampling rate", number(plan.sampling_rate, 4)
    if plan.amount_name:
        yield plan.amount_name, number(plan.amount)
    if plan.epsilon is not None:
        of_what = " nats of mutual information" if plan.delta is None else f" at delta {bound(plan.delta, 3)}"
        yield "epsilon", f"{bound(plan.epsilon, 4)}{of_what}"
    if plan.signal is not None and plan.per_number is not None:
        yield "largest signal to noise, one direction", number(plan.signal, 3)
        yield "largest signal to noise, all trained numbers", number(plan.per_number, 3)
    yield "expected time of the steps", f"{duration(plan.seconds)} on {plan.device}"
    yield "peak memory", size(plan.memory)
    if plan.gpu_memory is not None:
        yield "on a GPU, computed from the tensors", size(plan.gpu_memory)
