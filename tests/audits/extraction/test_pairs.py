"""Sequence-to-sequence models: what is decided of targets is what the models' own loop writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from audits.extraction.audit import ExtractionAudit
from audits.extraction.elsewhere import ReferenceModel, known_elsewhere
from audits.extraction.greedy import decide, margin_scores
from audits.extraction.law import SamplingLaw
from audits.extraction.near import NEAR, near_matches
from audits.extraction.pairs import PairShape, pair_shape
from audits.extraction.request import ExtractionRequest
from audits.extraction.summary import NEAR_BEYOND
from audits.scores.subject import load_subject
from privctl.cli import run
from privctl.data.records import Record
from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import silent
from privctl.domain.verdict import Outcome
from privctl.models.choices import TaskName
from privctl.models.language import LanguageModel
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.vocabulary import frequent_words, private_vocabulary
from privctl.reports.files import read_report
from tests.audits.extraction.test_near import table
from tests.audits.tiny import WORDS
from tests.few import few
from tests.models.tasks.small import architecture, save_pairs_model

SUFFIX = 6


def pairs(count: int, seed: int, length: int = 8) -> list[tuple[str, str]]:
    random = np.random.default_rng(seed)
    return [tuple(" ".join(random.choice(WORDS, length).tolist()) for _ in range(2)) for _ in range(count)]  # type: ignore[misc]


def write(path: Path, some: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in some))
    return path


def records(some: Sequence[tuple[str, str]]) -> list[Record]:
    return [Record(i, f"{a}\n{b}", start=len(a) + 1) for i, (a, b) in enumerate(some, start=1)]


@pytest.fixture(scope="module", params=["t5", "bart"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = save_pairs_model(tmp_path_factory.mktemp("m") / "m", request.param)
    return load_subject(folder, device="cpu").model


def written(model: LanguageModel, shape: PairShape, rows: Sequence[np.ndarray]) -> list[list[int]]:
    """What transformers' own loop writes by argmax after each window's prompt."""
    tail = 1 + shape.prefix + shape.suffix
    found: dict[int, list[int]] = {}
    for length in {len(row) for row in rows}:
        alike = [i for i, row in enumerate(rows) if len(row) == length]
        ids = torch.from_numpy(np.stack([rows[i] for i in alike]))
        out = ids[:, -tail : -shape.suffix]
        for _ in range(shape.suffix):
            logits = model.network(input_ids=ids[:, :-tail], decoder_input_ids=out, use_cache=False).logits
            out = torch.cat([out, logits[:, -1:].argmax(dim=2)], dim=1)
        found |= dict(zip(alike, out[:, -shape.suffix :].tolist(), strict=True))
    return [found[i] for i in range(len(rows))]


@pytest.mark.parametrize("given", few([0, 2], 1))
def test_decisions_and_distances_are_those_of_decoding(model: LanguageModel, given: int) -> None:
    """Windows whose suffixes are what decoding writes, and others ever further from it."""
    shape = pair_shape(model, given, SUFFIX, None)
    random = np.random.default_rng(0)
    some = [cut.window for cut in shape.cut(model, records([*pairs(12, 1), *pairs(12, 2, 9)]))]
    rows = [row for row in some if row is not None]
    assert len(rows) == 24
    for i, (row, text) in enumerate(zip(rows, written(model, shape, rows), strict=True)):
        row[-SUFFIX:] = text
        places = len(row) - SUFFIX + random.permutation(SUFFIX)[: i % 4]
        row[places] = random.integers(5, 20, len(places))
    ends = np.array([row[-SUFFIX:] for row in rows])
    expected = np.array(written(model, shape, rows))
    margin, logit = shape.measure(model, rows, margin_scores, 2, silent)
    found = decide(model, rows, margin, logit, logits=shape.logits)
    exact = (ends == expected).all(axis=1)
    assert found.extracted.tolist() == exact.tolist()
    assert 4 <= exact.sum() <= 20
    near = near_matches(model, rows, SUFFIX, exact, decoder=shape.decoder)
    assert near is not None
    distances = np.array([table(a, b) for a, b in zip(expected.tolist(), ends.tolist(), strict=True)]) / SUFFIX
    close = distances <= 0.5
    assert near.distance[close] == pytest.approx(distances[close])
    assert (near.distance[~close] > 0.5).all()


def test_a_window_is_the_source_and_the_beginning_of_the_target(model: LanguageModel) -> None:
    shape = pair_shape(model, 1, 3, None)
    (source, target), short = pairs(1, 4)[0], ("the cat", "a")
    whole, none = shape.cut(model, records([(source, target), short]))
    ids = model.tokenizer(source)["input_ids"]
    labels = model.tokenizer(text_target=target)["input_ids"]
    assert whole.window is not None
    assert whole.window[: len(ids)].tolist() == ids
    assert whole.window[len(ids) + 1 :].tolist() == labels[:4]
    assert whole.document.tolist()[: len(labels)] == labels
    assert none.window is None


#: Sizes, and steps until the target is known.
KINDS = {
    "bart": ({"d_model": 48, "init_std": 0.1}, 100),
    "t5": ({"d_model": 48, "d_kv": 16, "d_ff": 96, "initializer_factor": 1.0, "tie_word_embeddings": False}, 120),
}


@pytest.fixture(scope="module", params=["bart", pytest.param("t5", marks=pytest.mark.slow)])
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows 24 targets by their sources, and the files of these and of others."""
    folder, kind = tmp_path_factory.mktemp("learned"), request.param
    sizes, steps = KINDS[kind]
    known = [TextRecord(stretch=Stretch("a"), line=1, text=" ".join(WORDS))]
    vocabulary = private_vocabulary(frequent_words(known, min_frequency=1))
    start = architecture(folder / "start", kind, **sizes)
    model = load_for_training(start, TaskName.SEQ2SEQ_LM, vocabulary=vocabulary, seed=3)
    tokenizer, some = model.companion, pairs(24, 1)
    save(model, folder / "other")
    ids = torch.tensor(tokenizer([a for a, _ in some])["input_ids"])
    labels = torch.tensor(tokenizer(text_target=[b for _, b in some])["input_ids"])
    optimizer = torch.optim.Adam(model.network.parameters(), 3e-3)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            model.network(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
    save(model, folder / "model")
    write(folder / "train.jsonl", some)
    write(folder / "held.jsonl", pairs(24, 2))
    return folder


def save(model: TrainingModel, folder: Path) -> None:
    model.network.save_pretrained(folder)
    model.companion.save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "more"), few([("model", []), ("model", ["--prefix-tokens", "2"]), ("other", [])], 0, 2)
)
def test_targets_that_were_learned_come_out(learned: Path, name: str, more: list[str]) -> None:
    files = ["--train", str(learned / "train.jsonl"), "--held-out", str(learned / "held.jsonl")]
    output = learned / f"{name}.audit.report.json"
    asked = ["--suffix-tokens", str(SUFFIX), "--device", "cpu", "-q", "-f", "-o", str(output), *more]
    assert run(["audit", "extraction", str(learned / name), *files, *asked]) == 0
    report = read_report(output)
    items = {item.quantity: item for item in report.evidence}
    rate, held = items["rate on training text"], items["rate on held-out text"]
    near = items[NEAR_BEYOND]
    assert held.details["extracted"] == 0
    assert report.parameters["extraction"]["prefix_tokens"] == (2 if more else 0)
    if name == "model":
        assert rate.details["extracted"] >= 16
        assert near.lower is not None
        assert near.lower > 0
        assert report.verdicts[0].outcome is Outcome.REFUTED
    else:
        assert rate.details["extracted"] == 0
        assert near.details["training_extracted"] <= 2
        assert report.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert max(NEAR) == 0.3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--adversarial", "3"], "--adversarial looks for what a text is continued with"),
        (["--divergence"], "--divergence look for what a text is continued with"),
        (["--least-prefix", "3"], "--least-prefix is about texts"),
        (["--suffix-tokens", "50"], "predicts at most"),
    ],
)
def test_what_pairs_do_not_have_is_refused(
    options: list[str], complaint: str, learned: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = ["--train", str(learned / "train.jsonl"), "--held-out", str(learned / "held.jsonl")]
    model = save_pairs_model(learned / "bart", "bart") if "50" in options else learned / "other"
    call = ["audit", "extraction", str(model), *files, "--suffix-tokens", "4", *options]
    assert run([*call, "-o", str(learned / "bad.report.json")]) == 2
    assert complaint in capfd.readouterr().err


def test_data_without_targets_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n')
    with pytest.raises(InputError, match="line 1 holds no pair of texts"):
        ExtractionAudit(model, ExtractionRequest(train=tmp_path / "a.jsonl", suffix_tokens=4), pairs=True)
    short = write(tmp_path / "b.jsonl", [("the cat", "a dog")])
    with pytest.raises(InputError, match="has no record of 30 tokens.* its longest has [0-9]+, so"):
        ExtractionAudit(model, ExtractionRequest(train=short, suffix_tokens=30), pairs=True)
    with pytest.raises(CommandError, match="--suffix-tokens is 0"):
        pair_shape(model, 0, 0, None)


def test_a_reference_model_is_asked_for_targets(model: LanguageModel, tmp_path: Path) -> None:
    """Itself gives what it writes, and nothing else; one with other tokens cannot be asked."""
    shape = pair_shape(model, 0, SUFFIX, None)
    some = [cut.window for cut in shape.cut(model, records(pairs(12, 1)))]
    rows = [row for row in some if row is not None]
    own = [np.concatenate([row[:-SUFFIX], found]) for row, found in zip(rows, written(model, shape, rows), strict=True)]
    asking = known_elsewhere(ReferenceModel(model=model), model, shape, rows, SamplingLaw())
    assert asking.gives(own).all()
    assert not asking.gives(rows).all()
    folder = save_pairs_model(tmp_path / "other", "bart")
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    other = load_subject(folder, device="cpu").model
    with pytest.raises(CommandError, match="another tokenizer"):
        known_elsewhere(ReferenceModel(model=other), model, shape, rows, None)
