"""Audits of models that saw no record, one builder for each kind of audit: the work of ``tests.bench.audit_null``.

A builder is given a folder for its models, and answers with a function that audits one data set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport

#: Records a side; those put aside for ``recall`` leave enough for a fused score. Users have five records each.
SIDE, USERS, EACH = 118, 24, 5
#: The strongest claim there is, which is true of a model that was not trained on the records.
CLAIM = (0.0, 1e-5)
#: Pools of records, each with its own models, that audits with shadow and reference models take in turn.
POOLS = 10

#: seed -> the report of an audit in which nothing is to be found.
Null = Callable[[int], "PrivacyReport"]


def _language_model(place: Path) -> Path:
    from tests.audits.tiny import save_model

    return save_model(place / "model", bos=True)


def audited(model: Path, **options: Any) -> PrivacyReport:
    import privctl

    return privctl.audit(model, device="cpu", no_cache=True, force=True, **options)


def _sides(place: Path, seed: int) -> dict[str, Path]:
    from tests.audits.tiny import sentences, write_jsonl

    texts = sentences(2 * SIDE, seed, longest=12)
    return {
        "members": write_jsonl(place / "m.jsonl", texts[:SIDE]),
        "nonmembers": write_jsonl(place / "n.jsonl", texts[SIDE:]),
    }


def _together(place: Path) -> Null:
    model = _language_model(place)
    return lambda seed: audited(model, **_sides(place, seed), thorough=True)


def _referred(place: Path, *attacks: str) -> Null:
    """Beside a model that was trained on none of the records either; by ``attacks``, or by the default ones."""
    from tests.audits.tiny import save_model

    model, other = _language_model(place), save_model(place / "other", bos=True, seed=5)
    return lambda seed: audited(model, **_sides(place, seed), reference=other, attacks=attacks)


def _differentiated(place: Path) -> Null:
    return _referred(place, "loss", "reference", "gradient-norm", "gradient-alignment")


def _as_one(place: Path) -> Null:
    model = _language_model(place)
    return lambda seed: audited(model, **_sides(place, seed), thorough=True, attacks="fused")


def _masked(place: Path) -> Null:
    """A masked model, of the words that its tokenizer knows."""
    from tests.audits import other
    from tests.audits.tiny import write_jsonl

    model = other.save(place / "model", "masked", wide=False)

    def audit(seed: int) -> PrivacyReport:
        texts = other.sentences(2 * SIDE, seed, longest=20)
        members, others = (
            write_jsonl(place / f"{name}.jsonl", some) for name, some in (("m", texts[:SIDE]), ("n", texts[SIDE:]))
        )
        return audited(model, members=members, nonmembers=others, thorough=True)

    return audit


def _pairs(place: Path) -> Null:
    """Sequence-to-sequence models of both architectures in turn, of the words that their tokenizers know."""
    from tests.bench.pair_models import KINDS as ARCHITECTURES
    from tests.bench.pair_models import drawn_pairs, untrained, write_pairs

    models = [untrained(place / kind, kind) for kind in ARCHITECTURES]

    def audit(seed: int) -> PrivacyReport:
        some = drawn_pairs(2 * SIDE, seed)
        members, others = (
            write_pairs(place / f"{name}.jsonl", each) for name, each in (("m", some[:SIDE]), ("n", some[SIDE:]))
        )
        return audited(models[seed % len(models)], members=members, nonmembers=others, thorough=True)

    return audit


def _images(place: Path) -> Null:
    from tests.audits import other

    model = other.save(place / "model", "vit", wide=False)

    def audit(seed: int) -> PrivacyReport:
        members, others = (other.write_data(place / name, "vit", SIDE, 2 * seed + i) for i, name in enumerate("mn"))
        return audited(model, members=members, nonmembers=others, thorough=True)

    return audit


def _users(place: Path) -> Null:
    """Users of five records each, who begin and end all of theirs with the same words."""
    from tests.audits.tiny import sentences

    model = _language_model(place)

    def audit(seed: int) -> PrivacyReport:
        texts = sentences(2 * USERS * EACH, seed, longest=9)
        habits = sentences(2 * USERS, seed + 1_000_000, longest=4)
        lines = [
            json.dumps({"text": f"{habits[i // EACH]} {text}", "user": i // EACH}) + "\n"
            for i, text in enumerate(texts)
        ]
        paths = {"members": place / "m.jsonl", "nonmembers": place / "n.jsonl"}
        half = USERS * EACH
        for path, some in zip(paths.values(), (lines[:half], lines[half:]), strict=True):
            path.write_text("".join(some))
        return audited(model, **paths, thorough=True, group_by="user")

    return audit


def _shadowed(place: Path) -> Null:
    """Shadow models are trained once, four on halves of a pool; each data set is a division of the pool by chance.

    The target was trained on none of it.
    """
    from tests.audits.tiny import save_model

    target = save_model(place / "target", bos=True, seed=1)
    audit = _divided(place, 1)
    return lambda seed: audit(target, seed)


def _beside_all(place: Path) -> Null:
    """Every attack on a language model: beside shadow models and a reference model, none trained on the records.

    The audits take ``POOLS`` pools in turn, each with a target, a reference model and shadow models of its own.
    """
    from tests.audits.tiny import save_model

    pools: dict[int, Null] = {}

    def made(pool: int) -> Null:
        folder = place / str(pool)
        folder.mkdir()
        target, other = (save_model(folder / name, bos=True, seed=100 * pool + i) for i, name in enumerate(("t", "r")))
        audit = _divided(folder, 1 + pool)
        return lambda seed: audit(target, seed, reference=other, thorough=True)

    def audit(seed: int) -> PrivacyReport:
        pool = seed % POOLS
        if pool not in pools:
            pools[pool] = made(pool)
        return pools[pool](seed)

    return audit


def _divided(place: Path, pool_seed: int) -> Callable[..., PrivacyReport]:
    """(model, seed, options) -> the report beside shadow models of a pool that ``seed`` divides."""
    import numpy as np

    from privctl.cli import run
    from tests.audits.tiny import save_model, sentences, write_jsonl

    start = save_model(place / "start", bos=True)
    texts = sentences(2 * SIDE, pool_seed, longest=12)
    pool = write_jsonl(place / "pool.jsonl", texts)
    trained = ["--count=4", "--steps=30", "--batch-size=16", "--learning-rate=0.01", "--device=cpu", "-q"]
    if run(["shadow", str(start), "--data", str(pool), "-o", str(place / "shadows"), *trained]):
        raise RuntimeError("the shadow models could not be trained")

    def audit(model: Path, seed: int, **options: Any) -> PrivacyReport:
        order = np.random.default_rng(seed).permutation(2 * SIDE).tolist()
        members, others = (
            write_jsonl(place / f"{name}.jsonl", [texts[i] for i in sorted(some)])
            for name, some in (("m", order[:SIDE]), ("n", order[SIDE:]))
        )
        return audited(model, members=members, nonmembers=others, shadow=place / "shadows", **options)

    return audit


def _drawn(place: Path) -> Null:
    """A split that privctl draws, held against a claim too."""
    from audits.split.draw import SplitRequest, draw_split
    from tests.audits.tiny import sentences, write_jsonl

    model = _language_model(place)

    def audit(seed: int) -> PrivacyReport:
        data = write_jsonl(place / "data.jsonl", sentences(2 * SIDE, seed, longest=12))
        draw_split(SplitRequest(data=data, folder=place / "split", force=True))
        return audited(model, split=place / "split" / "manifest.json", thorough=True, claim=CLAIM)

    return audit


KINDS: dict[str, Callable[[Path], Null]] = {
    "all attacks": _together,
    "users": _users,
    "drawn split, claim of epsilon 0": _drawn,
    "data set": _as_one,
    "masked model": _masked,
    "pairs": _pairs,
    "images": _images,
    "shadow models": _shadowed,
    "reference model": _referred,
    "gradients": _differentiated,
    "all attacks, beside other models": _beside_all,
}
