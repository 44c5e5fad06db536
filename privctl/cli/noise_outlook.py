"""The output of ``privctl noise --dry-run`` where facts of the training are missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from privctl.cli.options import show

if TYPE_CHECKING:
    from privctl.noise.dp_weights import PrivacyTarget
    from privctl.noise.facts import MissingFactsError
    from privctl.storage.reader import Checkpoint


def show_outlook(
    checkpoint: Checkpoint,
    base: Checkpoint | None,
    options: dict[str, Any],
    error: MissingFactsError,
    target: PrivacyTarget,
) -> None:
    """Print which facts are known and which are missing, and the noise for typical values of the missing ones."""
    from privctl.noise.facts import REQUIRED
    from privctl.noise.grain import typical_weight
    from privctl.noise.outlook import outlook
    from privctl.noise.selection import select
    from privctl.show.text.noise_outlook import FactLine, NoiseLine, outlook_text

    selection = select(checkpoint, include=options["include"], exclude=options["exclude"], base=base)
    size = typical_weight(checkpoint, selection.streams.keys())
    known = {name: value for name, (value, _) in error.known.items()}
    delta = options["delta"] if options["delta"] is not None else error.delta
    rows = list(outlook(known, target, selection.dimension, delta))
    if options["as_json"]:
        data = {
            "dry_run": True,
            "known": known,
            "missing": list(error.missing),
            "epsilon": target.epsilon,
            "regime": str(target.regime),
            "weights_root_mean_square": size,
            "typical": [
                {
                    "fact": row.fact, "value": row.value, "stands_in": row.usual, "delta": row.delta,
                    "noise_stddev": row.stddev, "published_noise_stddev": row.published_stddev,
                }
                for row in rows
            ],
        }  # fmt: skip
        show(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", as_json=True)
        return
    facts = [
        FactLine(name=name, value=f"{known[name]:g}", source=error.known[name][1].name)
        if name in known
        else FactLine(name=name, value=None, source=f"nothing; --{name.replace('_', '-')}")
        for name in REQUIRED
    ]
    facts += [
        FactLine(name=name, value=str(value), source=source.name)
        for name, (value, source) in error.known.items()
        if name not in REQUIRED
    ]
    lines = [
        NoiseLine(
            fact=row.fact,
            value=row.value,
            usual=row.usual,
            stddev=row.stddev,
            published_stddev=row.published_stddev,
        )
        for row in rows
    ]
    loss = "any loss" if target.regime == "nonconvex" else f"a {target.regime} loss"
    delta_text = "the default, 1 / examples squared" if delta is None else f"{delta:g}"
    aim = f"epsilon {target.epsilon:g} and {loss}, delta {delta_text}"
    advice = (
        f"state the training's own numbers, such as: {error.example}; or see --noise-stddev, which guarantees nothing"
    )
    show(outlook_text(facts, lines, size=size, aim=aim, advice=advice))
