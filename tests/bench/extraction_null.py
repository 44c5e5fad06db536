"""Extraction audits that should accuse nobody: the model learned public text elsewhere, and never saw the file.

Where public text stands on both sides by chance, an audit may accuse in 5 % of cases. Where it stands in the training
file alone, the comparison with held-out text accuses, and the one among texts alike must not. Whole audits of a tiny
model, by the records' own beginnings, prompts from outside and repetition; then outcomes drawn by chance for real prose
with real licences between. Beside them, what was memorized.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.audit_null import interval
from tests.bench.common import RESULTS, publish, save
from tests.bench.null_audits import audited
from tests.bench.null_secrets import of_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from privctl.domain.report import PrivacyReport

    #: seed -> whether training text exceeds held-out text, and whether that accuses the model.
    Judge = Callable[[int], tuple[bool, bool]]

#: Records a side of a tiny audit, and those of them that the model knows.
SIDE, KNOWN = 60, 24
#: The same of prose; words of a record; the chances that known text comes out, and other text.
PROSE, LICENCES, WORDS, PROSE_SETS = 300, 20, 80, 60
#: Of these, so few memorized that the comparison among texts alike may miss them.
FEW = 12
CHANCE, LUCK = 0.9, 0.003
#: Parts of the result.
PARTS = ("audits", "reference", "pairs", "secrets", "prose")
#: What is audited with the model before training as the reference model.
ALONE = "the same, with a reference model"
AND_RECORDS = "the same and records of the training file, with a reference model"
#: The level of each of 14 comparisons that share 5 %.
LEVEL = 0.05 / 14


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--sets", type=int, default=40, help="audits of each kind")
    parser.add_argument("--kinds", nargs="*", help="of which a name holds one of these; others keep their result")
    parser.add_argument("--prose", type=Path, help="JSON lines of texts; without it that part keeps its result")
    parser.add_argument("--licences", type=Path, help="folder of public licences, as Debian's common-licenses")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    path = Path(options.output) if options.output else RESULTS / "extraction-null.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    data: dict[str, Any] = {part: known.get(part, {}) for part in PARTS}

    def measured(part: str, sets: int, kinds: dict[str, Judge]) -> None:
        for kind, judge in kinds.items():
            if options.kinds is None or any(name in kind for name in options.kinds):
                data[part][kind] = _counted(sets, judge, kind)
                save("extraction-null", data, options.output)

    with tempfile.TemporaryDirectory() as folder:
        if options.sets:
            measured("audits", options.sets, audits(Path(folder)))
            measured("pairs", options.sets, of_pairs(Path(folder)))
            measured("reference", options.sets, with_reference(Path(folder)))
            measured("secrets", options.sets, of_secrets(Path(folder) / "secrets"))
        if options.prose:
            measured("prose", PROSE_SETS, of_prose(options.prose, options.licences))
    rows = [
        [part, kind, str(found["sets"]), *(_rate_cell(found, name) for name in ("held_out", "accused"))]
        for part in PARTS
        for kind, found in data[part].items()
    ]
    headings = ["of", "known to the model", "sets", "exceeds held-out text", "among texts alike too"]
    publish("extraction-null", headings, rows, data, options.output)


def _rate_cell(found: dict[str, Any], name: str) -> str:
    low, high = found[f"{name}_interval"]
    return f"{found[name] / found['sets']:.3f} ({low:.3f} to {high:.3f})"


def _counted(sets: int, judge: Judge, name: str) -> dict[str, Any]:
    """In how many sets training text exceeds held-out text, and in how many that accuses the model."""
    judged = [judge(seed) for seed in range(sets)]
    held_out, accused = (sum(each) for each in zip(*judged, strict=True))
    print(f"{name}: {held_out} and {accused} of {sets}", file=sys.stderr, flush=True)
    return {
        "sets": sets,
        "held_out": held_out,
        "held_out_interval": interval(held_out, sets),
        "accused": accused,
        "accused_interval": interval(accused, sets),
    }


def audits(folder: Path) -> dict[str, Judge]:
    """Whole audits of a model that learned public text, or records of its own."""
    from tests.audits.extraction.public_text import learn, licences, others

    public, own = licences(2 * KNOWN), others(KNOWN, 0)
    models = {"public": learn(folder / "public", public), "own": learn(folder / "own", own)}

    def judge(model: str, train: np.ndarray, held: np.ndarray, seed: int) -> tuple[bool, bool]:
        return _concluded(_extracted(folder, models[model], train, held, public if model == "public" else own, seed))

    def by_chance(seed: int) -> tuple[bool, bool]:
        import numpy as np

        every = np.concatenate([public, others(2 * (SIDE - KNOWN), seed + 1)])
        every = np.random.default_rng(seed).permutation(every)
        return judge("public", every[:SIDE], every[SIDE:], seed)

    def alone(model: str, known: np.ndarray) -> Callable[[int], tuple[bool, bool]]:
        import numpy as np

        def judged(seed: int) -> tuple[bool, bool]:
            texts = others(2 * SIDE - KNOWN, seed + 1)
            return judge(model, np.concatenate([known[:KNOWN], texts[SIDE:]]), texts[:SIDE], seed)

        return judged

    def by_coins(seed: int) -> tuple[bool, bool]:
        import numpy as np

        every = np.concatenate([public, others(2 * (SIDE - KNOWN), seed + 1)])
        return _concluded(_of_a_split(folder, models["public"], np.random.default_rng(seed).permutation(every)))

    return {
        "public text on both sides by chance": by_chance,
        "public text in the training file alone": alone("public", public),
        "records of the training file": alone("own", own),
        "public text on the sides of a drawn split": by_coins,
    }


def with_reference(folder: Path) -> dict[str, Judge]:
    """Audits of models that learned public text like no other before, with and without the model before training.

    Both go on from one that knows the public text, with other text or with the training file's own records.
    """
    import numpy as np

    from tests.audits.extraction.public_text import learn, others, unlike

    public, own, unseen = unlike(KNOWN), others(KNOWN, 0), others(KNOWN, 1)
    base = learn(folder / "base", public)
    models = {
        "base": base,
        "elsewhere": learn(folder / "elsewhere", np.concatenate([public, unseen]), begin=base),
        "own": learn(folder / "leaking", np.concatenate([public, own]), begin=base),
        "half": learn(folder / "half", public[: KNOWN // 2]),
        "same": learn(folder / "same", np.concatenate([public, own]), steps=100, begin=base),
    }

    def of(model: str, known: np.ndarray, reference: str | None = None) -> Callable[[int], tuple[bool, bool]]:
        def judged(seed: int) -> tuple[bool, bool]:
            texts = others(2 * SIDE - len(known), seed + 2)
            train, held = np.concatenate([known, texts[SIDE:]]), texts[:SIDE]
            more = {} if reference is None else {"reference": models[reference]}
            return _concluded(_extracted(folder, models[model], train, held, known, seed, **more))

        return judged

    both = np.concatenate([public, own])
    return {
        "text like no other in the training file alone": of("elsewhere", public),
        ALONE: of("elsewhere", public, "base"),
        f"{ALONE} that knows half of it": of("elsewhere", public, "half"),
        AND_RECORDS: of("own", both, "base"),
        f"{AND_RECORDS} trained on them": of("own", both, "same"),
    }


def _of_a_split(folder: Path, model: Path, every: np.ndarray) -> PrivacyReport:
    from audits.split.draw import SplitRequest, draw_split
    from tests.audits.extraction.public_text import PREFIX, SPAN
    from tests.audits.extraction.test_part import words
    from tests.audits.tiny import write_jsonl

    data = write_jsonl(folder / "data.jsonl", [*map(words, every)])
    draw_split(SplitRequest(data=data, folder=folder / "split", force=True))
    return audited(
        model, extraction_split=folder / "split" / "manifest.json", prefix_tokens=PREFIX, suffix_tokens=SPAN,
        divergence=True, continuations=2,
    )  # fmt: skip


def of_pairs(folder: Path) -> dict[str, Judge]:
    """Whole audits of sequence-to-sequence models that learned pairs elsewhere, or of their training files."""
    from tests.bench.pair_models import KINDS as ARCHITECTURES

    found: dict[str, Judge] = {}
    for kind in ARCHITECTURES:
        name, (by_chance, alone) = kind.upper(), _of_pairs(folder / kind, kind)
        found |= {f"pairs on both sides by chance, {name}": by_chance, f"pairs of the training file, {name}": alone}
    return found


def _of_pairs(folder: Path, kind: str) -> tuple[Judge, Judge]:
    import numpy as np

    from tests.bench.pair_models import drawn_pairs, learned, write_pairs

    known = drawn_pairs(2 * KNOWN, 1)
    folder.mkdir()
    model = learned(folder / "model", kind, known, 150)

    def judge(train: list[tuple[str, str]], held: list[tuple[str, str]]) -> tuple[bool, bool]:
        sides = (write_pairs(folder / f"{name}.jsonl", some) for name, some in (("train", train), ("held", held)))
        files = dict(zip(("train", "heldout"), sides, strict=True))
        return _concluded(audited(model, **files, suffix_tokens=6))

    def by_chance(seed: int) -> tuple[bool, bool]:
        every = known + drawn_pairs(2 * (SIDE - KNOWN), seed + 2)
        order = np.random.default_rng(seed).permutation(len(every)).tolist()
        return judge(*([every[i] for i in some] for some in (order[:SIDE], order[SIDE:])))

    def alone(seed: int) -> tuple[bool, bool]:
        others = drawn_pairs(2 * SIDE - KNOWN, seed + 2)
        return judge(known[:KNOWN] + others[SIDE:], others[:SIDE])

    return by_chance, alone


def _extracted(
    folder: Path, model: Path, train: np.ndarray, held: np.ndarray, known: np.ndarray, seed: int, **more: Any
) -> PrivacyReport:
    from tests.audits.extraction.public_text import PREFIX, SPAN
    from tests.audits.extraction.test_part import words
    from tests.audits.tiny import write_jsonl

    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"{words(row[:3])}\n" for row in known))
    return audited(
        model,
        train=write_jsonl(folder / "train.jsonl", [*map(words, train)]),
        heldout=write_jsonl(folder / "held.jsonl", [*map(words, held)]),
        prompts=prompts, divergence=True, continuations=2, sampling_seed=seed, prefix_tokens=PREFIX, suffix_tokens=SPAN,
        **more,
    )  # fmt: skip


def _concluded(report: PrivacyReport) -> tuple[bool, bool]:
    from audits.extraction.alike import ALIKE
    from audits.extraction.verdict import verdict
    from privctl.domain.verdict import Outcome

    without = [item for item in report.evidence if not item.quantity.endswith(ALIKE)]
    return verdict(without).outcome is Outcome.REFUTED, verdict(report.evidence).outcome is Outcome.REFUTED


def of_prose(path: Path, licences: Path | None) -> dict[str, Judge]:
    """Real texts, of which known ones come out with a chance of ``CHANCE``: Fisher's exact test with and without."""
    import numpy as np

    from audits.extraction.alike import blocks, p_value
    from audits.statistics.two_rates import fisher

    texts = list(dict.fromkeys(_prose(path)))
    public = _licences(licences) if licences is not None else []

    def judge(kind: str, seed: int) -> tuple[bool, bool]:
        random = np.random.default_rng(seed)
        drawn = [texts[i] for i in random.choice(len(texts), 2 * PROSE, replace=False)]
        train = np.arange(2 * PROSE) < PROSE
        out = random.random(2 * PROSE) < LUCK
        known = np.arange(2 * PROSE) < (FEW if kind.startswith(f"{FEW} ") else LICENCES)
        if "licences" in kind:
            for i, place in enumerate(random.choice(len(public), LICENCES, replace=False)):
                drawn[i] = public[place]
        if "by chance" in kind:
            train = random.permutation(train)
        out |= known & (random.random(2 * PROSE) < CHANCE)
        found = blocks(drawn, [random.bytes(8) for _ in drawn], train, out)
        exceeds = fisher(int((out & train).sum()), PROSE, int((out & ~train).sum()), PROSE) <= LEVEL
        return exceeds, exceeds and p_value(found) <= LEVEL

    kinds = ["records of the training file", f"{FEW} records of the training file"]
    kinds += ["licences on both sides by chance", "licences in the training file alone"] if public else []
    return {kind: partial(judge, kind) for kind in kinds}


def _prose(path: Path) -> list[str]:
    lines = (json.loads(line) for line in path.read_text().splitlines())
    texts = (" ".join(value for value in line.values() if isinstance(value, str)).split() for line in lines)
    return [" ".join(words[:WORDS]) for words in texts if len(words) >= WORDS // 5]


def _licences(folder: Path) -> list[str]:
    """Stretches of ``WORDS`` words of every file that is no link."""
    found = []
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink()):
        words = path.read_text(errors="replace").split()
        found += [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS, WORDS)]
    return found
