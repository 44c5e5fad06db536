"""Audits of models that saw no record, one builder for each kind of audit: the work of ``tests.bench.audit_null``.

A builder is given a folder for its models, and answers with a function that audits one data set.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport

#: Records a side; those put aside for ``recall`` leave enough for a fused score.
SIDE = 118
#: Users a side with so many records each, and how many records users of different sizes have at most.
USERS, EACH, MOST = 24, 5, 9
#: Users that have coins, in an audit of a language model.
DRAWN_USERS = 80
#: The strongest claim there is, which is true of a model that was not trained on the records.
CLAIM = (0.0, 1e-5)
#: Pools of records, each with its own models, that audits with shadow and reference models take in turn.
POOLS = 10

#: seed -> the report of an audit in which nothing is to be found.
Null = Callable[[int], "PrivacyReport"]


def _language_model(folder: Path) -> Path:
    from tests.audits.tiny import save_model

    return save_model(folder / "model", bos=True)


def audited(model: Path, **options: Any) -> PrivacyReport:
    import privctl

    return privctl.audit(model, device="cpu", no_cache=True, force=True, **options)


def _sides(folder: Path, seed: int) -> dict[str, Path]:
    from tests.audits.tiny import sentences, write_jsonl

    texts = sentences(2 * SIDE, seed, longest=12)
    return {
        "members": write_jsonl(folder / "m.jsonl", texts[:SIDE]),
        "nonmembers": write_jsonl(folder / "n.jsonl", texts[SIDE:]),
    }


def _together(folder: Path, precision: str | None = None) -> Null:
    model = _language_model(folder)
    return lambda seed: audited(model, **_sides(folder, seed), thorough=True, precision=precision)


def _referred(folder: Path, *attacks: str) -> Null:
    """Beside a model that was trained on none of the records either; by ``attacks``, or by the default ones."""
    from tests.audits.tiny import save_model

    model, other = _language_model(folder), save_model(folder / "other", bos=True, seed=5)
    return lambda seed: audited(model, **_sides(folder, seed), reference=other, attacks=attacks)


def _differentiated(folder: Path) -> Null:
    return _referred(folder, "loss", "reference", "gradient-norm", "gradient-alignment")


def _as_one(folder: Path) -> Null:
    model = _language_model(folder)
    return lambda seed: audited(model, **_sides(folder, seed), thorough=True, attacks="fused")


def _masked(folder: Path) -> Null:
    """A masked model, of the words that its tokenizer knows."""
    from tests.audits import other
    from tests.audits.tiny import write_jsonl

    model = other.save(folder / "model", "masked", wide=False)

    def audit(seed: int) -> PrivacyReport:
        texts = other.sentences(2 * SIDE, seed, longest=20)
        members, others = (
            write_jsonl(folder / f"{name}.jsonl", some) for name, some in (("m", texts[:SIDE]), ("n", texts[SIDE:]))
        )
        return audited(model, members=members, nonmembers=others, thorough=True)

    return audit


def _pairs(folder: Path) -> Null:
    """Sequence-to-sequence models of both architectures in turn, of the words that their tokenizers know."""
    from tests.bench.pair_models import KINDS as ARCHITECTURES
    from tests.bench.pair_models import drawn_pairs, untrained, write_pairs

    models = [untrained(folder / kind, kind) for kind in ARCHITECTURES]

    def audit(seed: int) -> PrivacyReport:
        some = drawn_pairs(2 * SIDE, seed)
        members, others = (
            write_pairs(folder / f"{name}.jsonl", each) for name, each in (("m", some[:SIDE]), ("n", some[SIDE:]))
        )
        return audited(models[seed % len(models)], members=members, nonmembers=others, thorough=True)

    return audit


def _images(folder: Path) -> Null:
    from tests.audits import other

    model = other.save(folder / "model", "vit", wide=False)

    def audit(seed: int) -> PrivacyReport:
        members, others = (other.write_data(folder / name, "vit", SIDE, 2 * seed + i) for i, name in enumerate("mn"))
        return audited(model, members=members, nonmembers=others, thorough=True)

    return audit


def _labels_of_words(folder: Path) -> Null:
    """Each word of a text has a label by chance, in records of different lengths."""
    from tests.audits import other
    from tests.models.tasks.annotated import NAMES

    def record(text: str, source: random.Random) -> dict[str, Any]:
        words = text.split()
        return {"tokens": words, "ner_tags": source.choices(NAMES, k=len(words))}

    return _annotated(folder, "token-classification", record, other.sentences)


def _answers(folder: Path) -> Null:
    """The answer to a question of one word is a stretch of one to three words of its text, by chance."""
    from tests.audits import other

    def record(text: str, source: random.Random) -> dict[str, Any]:
        words = text.split()
        first = source.randrange(len(words))
        answer = " ".join(words[first : first + source.randint(1, 3)])
        start = len(" ".join([*words[:first], ""]))
        return {"question": source.choice(other.WORDS), "context": text, "answer": answer, "answer_start": start}

    return _annotated(folder, "question-answering", record, other.sentences)


def _annotated(
    folder: Path,
    task: str,
    record: Callable[[str, random.Random], dict[str, Any]],
    sentences: Callable[[int, int], list[str]],
) -> Null:
    """A BERT for ``task`` that reads texts of 3 to 12 words in single letters, and two sides of such records."""
    from privctl.models.choices import TaskName
    from tests.models.tasks import annotated

    model = annotated.save(folder / "model", TaskName(task))

    def audit(seed: int) -> PrivacyReport:
        source = random.Random(seed)
        lines = [json.dumps(record(text, source)) + "\n" for text in sentences(2 * SIDE, seed)]
        paths = {"members": folder / "m.jsonl", "nonmembers": folder / "n.jsonl"}
        for path, some in zip(paths.values(), (lines[:SIDE], lines[SIDE:]), strict=True):
            path.write_text("".join(some))
        return audited(model, **paths, thorough=True)

    return audit


def _sounds(place: Path) -> Null:
    """Noise of different lengths and loudness with labels by chance: a wav2vec 2.0 and a spectrogram transformer."""
    import numpy as np

    from tests.zoo.shrink import SAMPLES, write_wav

    models = [_classifier_of_sounds(place / kind, kind) for kind in ("wav2vec2", "audio-spectrogram-transformer")]

    def audit(seed: int) -> PrivacyReport:
        source = np.random.default_rng(seed)
        for side in "mn":
            shutil.rmtree(place / side, ignore_errors=True)
            for i in range(SIDE):
                folder = place / side / f"LABEL_{source.integers(2)}"
                folder.mkdir(parents=True, exist_ok=True)
                length, loudness = int(source.integers(SAMPLES // 2, SAMPLES)), source.uniform(0.02, 0.3)
                write_wav(folder / f"{i:03}.wav", source.normal(scale=loudness, size=length))
        return audited(models[seed % len(models)], members=place / "m", nonmembers=place / "n", thorough=True)

    return audit


def _classifier_of_sounds(folder: Path, kind: str) -> Path:
    from safetensors.torch import load_file, save_file

    from tests.zoo.shrink import build

    build("audio-classification", kind, folder)
    path = folder / "model.safetensors"
    # Initial weights are so small that every sound would score alike.
    tensors = {name: 8 * values if values.ndim > 1 else values for name, values in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    return folder


def _users(folder: Path, users: int = USERS, most: int | None = None) -> Null:
    """So many users a side, who begin and end all of their records with the same words.

    They have ``EACH`` records, or any number up to ``most``.
    """
    model = _language_model(folder)

    def audit(seed: int) -> PrivacyReport:
        owned = _of_users(2 * users, seed, most)
        paths = {"members": folder / "m.jsonl", "nonmembers": folder / "n.jsonl"}
        for path, some in zip(paths.values(), (owned[:users], owned[users:]), strict=True):
            path.write_text("".join(line for lines in some for line in lines))
        return audited(model, **paths, thorough=True, group_by="user")

    return audit


def _of_users(users: int, seed: int, most: int | None) -> list[list[str]]:
    """The lines of each user."""
    import numpy as np

    from tests.audits.tiny import sentences

    sizes = [EACH] * users
    if most is not None:
        sizes = np.random.default_rng([seed, users]).integers(1, most + 1, users).tolist()
    texts, habits = sentences(sum(sizes), seed, longest=9), sentences(users, seed + 1_000_000, longest=4)
    left = iter(texts)
    return [
        [json.dumps({"text": f"{habit} {next(left)}", "user": number}) + "\n" for _ in range(size)]
        for number, (habit, size) in enumerate(zip(habits, sizes, strict=True))
    ]


def _drawn_users(folder: Path) -> Null:
    """Users that have coins, held against a claim too."""
    model = _language_model(folder)

    def audit(seed: int) -> PrivacyReport:
        lines = [line for some in _of_users(DRAWN_USERS, seed, MOST) for line in some]
        return audited(model, split=_split_of_users(folder, lines), thorough=True, claim=CLAIM)

    return audit


def _split_of_users(folder: Path, lines: list[str]) -> Path:
    from audits.split.draw import SplitRequest, draw_split

    data = folder / "data.jsonl"
    data.write_text("".join(lines))
    draw_split(SplitRequest(data=data, folder=folder / "split", group_by="user", force=True))
    return folder / "split" / "manifest.json"


def _scored_users(folder: Path, users: int) -> Null:
    """``audit_module`` by so many users that have coins, whose records' scores correlate by a half.

    Its model's own report claims next to nothing, and is right: it was trained on none of the records.
    """
    import numpy as np
    import torch
    from safetensors.torch import save_file

    import privctl

    torch.manual_seed(0)
    network, saved = torch.nn.Linear(4, 3), folder / "own.safetensors"
    save_file(network.state_dict(), saved)
    privctl.from_opacus([(1e4, 0.1, 1)], saved, examples=users)

    def scores(module: torch.nn.Module, records: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        outputs = module(torch.tensor([record["inputs"] for record in records]))
        # The second is of few values, as a share of right answers is.
        return {"loss": outputs[:, 0], "hits": (2 * outputs[:, 1]).round(), "gap": outputs[:, 0] - outputs[:, 2]}

    def audit(seed: int) -> PrivacyReport:
        source = np.random.default_rng(seed)
        sizes = source.integers(1, MOST + 1, users).tolist()
        lines = [
            json.dumps({"inputs": ((usual + source.normal(size=4)) / 2**0.5).tolist(), "user": user}) + "\n"
            for user, size in enumerate(sizes)
            for usual in [source.normal(size=4)]
            for _ in range(size)
        ]
        return privctl.audit_module(
            network, saved, scores, split=_split_of_users(folder, lines), log=folder / f"{seed}.jsonl", force=True
        )

    return audit


def _shadowed(folder: Path) -> Null:
    """Shadow models are trained once, four on halves of a pool; each data set is a division of the pool by chance.

    The target was trained on none of it.
    """
    from tests.audits.tiny import save_model

    target = save_model(folder / "target", bos=True, seed=1)
    audit = _divided(folder, 1)
    return lambda seed: audit(target, seed)


def _beside_all(place: Path) -> Null:
    """Every attack on a language model: beside shadow models and a reference model, none trained on the records.

    The audits take ``POOLS`` pools in turn, each with a target, a reference model and shadow models of its own.
    """
    from tests.audits.tiny import save_model

    pools: dict[int, Null] = {}

    def audits_of_pool(pool: int) -> Null:
        folder = place / str(pool)
        folder.mkdir()
        target, other = (save_model(folder / name, bos=True, seed=100 * pool + i) for i, name in enumerate(("t", "r")))
        audit = _divided(folder, 1 + pool)
        return lambda seed: audit(target, seed, reference=other, thorough=True)

    def audit(seed: int) -> PrivacyReport:
        pool = seed % POOLS
        if pool not in pools:
            pools[pool] = audits_of_pool(pool)
        return pools[pool](seed)

    return audit


def _divided(folder: Path, pool_seed: int) -> Callable[..., PrivacyReport]:
    """(model, seed, options) -> the report beside shadow models of a pool that ``seed`` divides."""
    import numpy as np

    from privctl.cli import run
    from tests.audits.tiny import save_model, sentences, write_jsonl

    start = save_model(folder / "start", bos=True)
    texts = sentences(2 * SIDE, pool_seed, longest=12)
    pool = write_jsonl(folder / "pool.jsonl", texts)
    trained = ["--count=4", "--steps=30", "--batch-size=16", "--learning-rate=0.01", "--device=cpu", "-q"]
    if run(["shadow", str(start), "--data", str(pool), "-o", str(folder / "shadows"), *trained]):
        raise RuntimeError("the shadow models could not be trained")

    def audit(model: Path, seed: int, **options: Any) -> PrivacyReport:
        order = np.random.default_rng(seed).permutation(2 * SIDE).tolist()
        members, others = (
            write_jsonl(folder / f"{name}.jsonl", [texts[i] for i in sorted(some)])
            for name, some in (("m", order[:SIDE]), ("n", order[SIDE:]))
        )
        return audited(model, members=members, nonmembers=others, shadow=folder / "shadows", **options)

    return audit


def _drawn(folder: Path) -> Null:
    """A split that privctl draws, held against a claim too."""
    from audits.split.draw import SplitRequest, draw_split
    from tests.audits.tiny import sentences, write_jsonl

    model = _language_model(folder)

    def audit(seed: int) -> PrivacyReport:
        data = write_jsonl(folder / "data.jsonl", sentences(2 * SIDE, seed, longest=12))
        draw_split(SplitRequest(data=data, folder=folder / "split", force=True))
        return audited(model, split=folder / "split" / "manifest.json", thorough=True, claim=CLAIM)

    return audit


KINDS: dict[str, Callable[[Path], Null]] = {
    "all attacks": _together,
    "all attacks, in bfloat16": partial(_together, precision="bfloat16"),
    "users": _users,
    "20 users a side, of 1 to 9 records": partial(_users, users=20, most=MOST),
    "60 users a side, of 1 to 9 records": partial(_users, users=60, most=MOST),
    "drawn split of users, claim of epsilon 0": _drawn_users,
    "scores of 40 users, by a function of one's own": partial(_scored_users, users=40),
    "scores of 120 users, by a function of one's own": partial(_scored_users, users=120),
    "drawn split, claim of epsilon 0": _drawn,
    "data set": _as_one,
    "masked model": _masked,
    "pairs": _pairs,
    "images": _images,
    "sounds": _sounds,
    "labels of words": _labels_of_words,
    "answers": _answers,
    "shadow models": _shadowed,
    "reference model": _referred,
    "gradients": _differentiated,
    "all attacks, beside other models": _beside_all,
}
