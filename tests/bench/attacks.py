"""What each membership attack finds in a model trained plainly and in one trained with differential privacy.

Both are fine-tuned from a small pretrained model on the same dialogues. The power of the joint test is the share of
smaller data sets, drawn from the same records, in which it rejects: with the default attacks, with those that read one
pass over the records, and with all of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import ROOT, publish

if TYPE_CHECKING:
    import numpy as np

_DATA = ROOT.parent / "shared" / "data"
_SHAPE = {"epochs": 12, "learning_rate": 0.002}
#: Attacks that ask the model more than the records themselves.
_ASKING = ("neighbour", "pac", "repeat", "recall", "con-recall")
_LEVEL, _RELABELLINGS = 0.05, 199


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the shared data")
    parser.add_argument("--records", type=int, default=400, help="members, and as many non-members")
    parser.add_argument("--draws", type=int, default=60, help="smaller data sets for the power")
    parser.add_argument("--sides", type=int, nargs="+", default=[50, 150], help="their records a side")


def main(options: argparse.Namespace) -> None:
    """Train, audit and publish."""
    import privctl

    start = options.data / "stories260k"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        members, others = (place / "members.jsonl", place / "nonmembers.jsonl")
        _write(options, members, others)
        models = {"plain": {"batch_size": 16}, "dp-sgd": {"batch_size": 64, "epsilon": 8}}
        found: dict[str, Any] = {}
        for method, settings in models.items():
            print(f"training {method}", file=sys.stderr, flush=True)
            model = place / method
            privctl.retrain(method, start, data=members, output=model, **_SHAPE, **settings)
            print(f"auditing {method}", file=sys.stderr, flush=True)
            began = time.process_time()
            report = privctl.audit(model, members=members, nonmembers=others, thorough=True)
            seconds = time.process_time() - began
            found[method] = {
                "processor_seconds": seconds,
                "attacks": _found(report),
                "power": _power(place / f"{method}.audit.scores.safetensors", options),
            }
    data = {"records_per_side": options.records, "training": {**_SHAPE, **models}, "draws": options.draws, **found}
    names = list(found["plain"]["attacks"])
    rows = [
        [name, *(f"{found[m]['attacks'][name][q]:.3f}" for m in models for q in ("AUC", "TPR at 1 % FPR"))]
        for name in names
    ]
    publish("attacks", ["attack", "plain AUC", "TPR", "dp-sgd AUC", "TPR"], rows, data, options.output)


def _write(options: argparse.Namespace, members: Path, others: Path) -> None:
    texts: dict[str, None] = {}
    with gzip.open(options.data / "text" / "sgd_dialogues.jsonl.gz", "rt") as lines:
        for line in lines:
            turns = json.loads(line)["turns"]
            texts[" ".join(turn[-1] if isinstance(turn, list) else turn for turn in turns)[:350]] = None
    drawn = random.Random(7).sample(list(texts), 2 * options.records)
    for path, some in ((members, drawn[: options.records]), (others, drawn[options.records :])):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))


def _found(report: Any) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for item in report.evidence:
        if item.quantity in ("AUC", "TPR at 1 % FPR") and "baseline" not in item.method:
            found.setdefault(item.method, {})[item.quantity] = item.estimate
            if item.sees is not None:
                found[item.method]["could see"] = item.sees
    return found


def _power(path: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By records a side, the share of draws in which the joint test rejects with each set of attacks."""
    import numpy as np
    from safetensors.numpy import load_file

    from audits import ATTACKS, THOROUGH
    from audits.scores.scores_file import SCORE, TESTED

    arrays = load_file(path)
    names = [name.removeprefix(SCORE) for name in arrays if name.startswith(SCORE)]
    scores = {
        name: np.asarray(arrays.get(f"{TESTED}{name}", arrays[f"{SCORE}{name}"]), np.float64)
        for name in names
        if name in ATTACKS or name in THOROUGH
    }
    sets = {
        "default": [name for name in scores if name in ATTACKS],
        "one pass": [name for name in scores if name not in _ASKING],
        "all": list(scores),
    }
    member = np.asarray(arrays["member"], np.bool_)
    found: dict[str, dict[str, float]] = {}
    for side in options.sides:
        source = np.random.default_rng(side)
        drawn = [
            np.concatenate([source.permutation(np.flatnonzero(member == each))[:side] for each in (True, False)])
            for _ in range(options.draws)
        ]
        found[str(side)] = {
            name: float(np.mean([_rejects({n: scores[n][rows] for n in chosen}, side) for rows in drawn]))
            for name, chosen in sets.items()
        }
    return found


def _rejects(scores: dict[str, np.ndarray], side: int) -> bool:
    """Whether the joint test over ``scores`` and the one learned from them rejects; members come first."""
    import numpy as np

    from audits.membership.attack import RATES
    from audits.membership.fused import LEAST
    from audits.statistics.fused import FusedScore
    from audits.statistics.max_t import max_t, rank_statistics

    member = np.arange(2 * side) < side
    statistics: dict[str, Any] = {name: rank_statistics(values, RATES) for name, values in scores.items()}
    if side >= LEAST:
        digests: Sequence[bytes] = [np.random.default_rng(i).bytes(16) for i in range(2 * side)]
        fused = FusedScore(scores=scores, digests=digests, members=side, rates=RATES, seed=side)
        statistics["fused"] = fused.statistics
    found = max_t(statistics, member, side, _LEVEL, _RELABELLINGS)
    return min(found.p_values.values()) <= _LEVEL
