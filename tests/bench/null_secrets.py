"""Audits of secrets against held-out secrets: where a model knows records of both sides by chance, and of one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    #: seed -> whether trained secrets are told better than held-out ones, and whether that accuses the model.
    Judge = Callable[[int], tuple[bool, bool]]

#: Records a side, and those that the model knows.
SIDE, KNOWN = 60, 40


def of_secrets(folder: Path) -> dict[str, Judge]:
    """Whole audits of a model that knows secrets of records on both sides by chance, or of training records alone."""
    from tests.audits.canaries.small import new_model, train
    from tests.audits.secrets.small import pins, prefixes
    from tests.audits.tiny import write_jsonl

    folder.mkdir()
    values = pins(2 * SIDE, 2)
    texts = [f"{front} {pin}" for front, pin in zip(prefixes(2 * SIDE, 1), values, strict=True)]
    model = new_model(folder / "model")
    train(model, write_jsonl(folder / "known.jsonl", texts[:KNOWN]), epochs=70)

    def judge(trained: Sequence[int], held_out: Sequence[int]) -> tuple[bool, bool]:
        return _judged(folder, model, [[(texts[i], values[i]) for i in side] for side in (trained, held_out)])

    def by_chance(seed: int) -> tuple[bool, bool]:
        order = _permuted(2 * SIDE, seed)
        return judge(order[:SIDE], order[SIDE:])

    def of_training(seed: int) -> tuple[bool, bool]:
        order = [KNOWN + i for i in _permuted(2 * SIDE - KNOWN, seed)]
        cut = SIDE - KNOWN
        return judge([*range(KNOWN), *order[:cut]], order[cut:])

    return {
        "secrets on both sides by chance": by_chance,
        "secrets of the training file": of_training,
    }


def _judged(folder: Path, model: Path, sides: Sequence[Sequence[tuple[str, str]]]) -> tuple[bool, bool]:
    from audits.secrets.evidence import TRACE
    from audits.secrets.verdict import TRACELESS
    from privctl.domain.verdict import Outcome
    from tests.audits.secrets.small import book
    from tests.audits.tiny import write_jsonl
    from tests.bench.null_audits import audited

    data, books = [], []
    for name, side in zip(("trained", "held"), sides, strict=True):
        data.append(write_jsonl(folder / f"{name}.jsonl", [text for text, _ in side]))
        books.append(book(folder / f"{name}-book.jsonl", [(value, [i]) for i, (_, value) in enumerate(side)]))
    report = audited(
        model, secrets=books[0], data=data[0], held_out_secrets=books[1], held_out_data=data[1], candidates=100
    )
    compared = [item for item in report.evidence if item.method == TRACE]
    (verdict,) = [verdict for verdict in report.verdicts if verdict.subject == TRACELESS]
    return any(item.details.get("detected") for item in compared), verdict.outcome is Outcome.REFUTED


def _permuted(count: int, seed: int) -> list[int]:
    import numpy as np

    found: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return found
