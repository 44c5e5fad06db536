"""The output of ``privctl noise``: a table with notes, reports as JSON, or the plan of a dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privctl.cli.options import show
from privctl.domain.guarantee import AssumptionState
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from privctl.noise.candidates import Candidate, NoiseRelease

#: The noise, in root mean squares of the weights, above which a note says that the model will be of no use.
_MUCH = 2.0


def print_json(reports: Any) -> None:
    """Print one report as JSON, or several as a list."""
    from privctl.reports.codec import encode

    texts = [encode(report).rstrip("\n") for report in reports]
    show((texts[0] if len(texts) == 1 else "[" + ",\n".join(texts) + "]") + "\n", as_json=True)


def _target_of(candidate: Candidate) -> dict[str, Any]:
    """The target of the noise by field name; empty where its size was given."""
    target = candidate.target
    if target is None:
        return {}
    return {"epsilon": target.epsilon, "delta": target.delta, "calibration": str(target.calibration)}


def print_plan(candidates: Sequence[Candidate], notes: Sequence[str]) -> None:
    """Print the plan of ``--dry-run`` as JSON. It is no report, because there is no file to name by a digest."""
    import json

    from privctl.reports.codec import encode_value

    rows = [
        {
            **_target_of(candidate),
            "noise_stddev": candidate.stddev,
            "published_noise_stddev": candidate.published_stddev,
            "would_write": str(candidate.path),
            "shortfall": None if candidate.shortfall is None else candidate.shortfall.reason,
            "guarantees": [encode_value(guarantee) for guarantee in candidate.guarantees],
            "omissions": [encode_value(omission) for omission in candidate.omissions],
        }
        for candidate in candidates
    ]
    data = {"dry_run": True, "candidates": rows, "notes": list(notes)}
    show(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", as_json=True)


def print_table(
    candidates: tuple[Candidate, ...],
    measures: Sequence[Mapping[str, float]],
    original: Mapping[str, float],
    notes: Sequence[str],
    *,
    dry_run: bool = False,
) -> None:
    """Print a table with one line for each candidate, and the ``notes``.

    ``measures`` are the measures of each candidate by quantity, and ``original`` those of the input. The table shows
    the first quantity only.
    """
    from privctl.show.text.noise import NoiseRow, NoiseWarnings, noise_table

    quantity = next(iter(original), "")
    rows = [
        NoiseRow(
            epsilon=candidate.target.epsilon if candidate.target else None,
            stddev=candidate.stddev,
            published_stddev=candidate.published_stddev,
            adjacency=candidate.target.adjacency if candidate.target else None,
            guarantees=candidate.guarantees,
            measured=measured.get(quantity),
            path=str(candidate.path),
        )
        for candidate, measured in zip(candidates, measures, strict=True)
    ]
    lacking = {candidate.path.name: candidate.shortfall for candidate in candidates if candidate.shortfall}
    warnings = NoiseWarnings(
        reasons={name: shortfall.reason for name, shortfall in lacking.items()},
        advice=tuple(dict.fromkeys(shortfall.advice for shortfall in lacking.values())),
    )
    table = noise_table(
        rows, warnings=warnings, notes=notes, quantity=quantity, original=original.get(quantity), dry_run=dry_run
    )
    show(table)


def notes_on(
    release: NoiseRelease, candidates: Sequence[Candidate], coarse: Sequence[str], *, quiet: bool = False
) -> list[str]:
    """The notes below the table; when ``quiet``, only those on what voids the guarantee or removes the noise."""
    from privctl.noise.grain import typical_weight
    from privctl.noise.selection import untouched_counts

    violated = [a for a in release.premises.assumptions if a.state is AssumptionState.VIOLATED]
    if quiet:
        return [*(f"{a.state}: {a.statement}" for a in violated), *filter(None, coarse)]
    notes = [f"no {o.what}: {o.reason}" for o in candidates[0].omissions if not o.reason.endswith("was not given")]
    notable = [a for a in release.premises.assumptions if a in violated or a in release.selection.assumptions]
    notes += [f"{a.state}: {a.statement}" for a in notable]
    notes += [
        f"left out of {file.name}: {', '.join(file.left_out)}, which names code that a loader would import or download"
        for file in release.companions
        if file.left_out
    ]
    notes += [line for line in coarse if line]
    size, most = typical_weight(release.checkpoint, release.selection.streams.keys()), max(c.stddev for c in candidates)
    if most > _MUCH * size:
        notes.append(
            f"the noise (standard deviation {most:.3g}) is far larger than the weights (root mean square {size:.3g}): "
            "expect a model of no use; for the same epsilon, privctl retrain dp-sgd usually gives a useful one"
        )
    counts = untouched_counts(release.selection)
    return notes + [f"{counted(count, 'tensor')} without noise: {why}" for why, count in counts.items()]
