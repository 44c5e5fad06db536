from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from audits.canaries.completion import Completion
from audits.scores.forward import score_rows
from audits.scores.scorer import RowScores, compute_scores, plan_scoring
from audits.scores.subject import load_subject
from audits.scores.table import FIELDS
from audits.secrets import continuations
from audits.secrets.audit import SecretRequest
from audits.secrets.rows import CausalReader, MaskedReader, reader_of
from audits.secrets.targets import SecretPassage
from privctl.domain.errors import CommandError
from tests.audits.canaries.small import new_model
from tests.audits.other import WORDS, save, sentences, write_data
from tests.audits.secrets.small import judged
from tests.audits.tiny import CONFIGS, save_model
from tests.few import few

NO_SCORES = RowScores(values=np.zeros((len(FIELDS), 0), np.float32), begins={})


def passage(text: str, value: str) -> SecretPassage:
    begin = text.index(value)
    return SecretPassage(text=text, begin=begin, end=begin + len(value))


def test_one_prefix_for_all_candidates_gives_the_losses_of_whole_rows(tmp_path: Path) -> None:
    subject = load_subject(new_model(tmp_path / "m", scale=4), device="cpu")
    reader = CausalReader(subject.model, 64)
    values = ["1234", "9876", "1235", "1234", "0000"]
    places = reader.places(passage("wak wal 1234 wam", "1234"), values)
    found = reader.losses(subject.model, places)
    scores, offsets = score_rows(subject.model, reader.rows(places))
    lp = scores[FIELDS.index("lp")]
    assert [len(place.before) for place in places] == [2] * 5
    for i in range(5):
        assert found[i] == pytest.approx(-lp[offsets[i + 1] - 4 : offsets[i + 1]].sum(dtype=np.float64), abs=1e-4)
    assert found[0] == found[3]


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("at_once", few([1, 2, 100], 1))
def test_losses_on_every_architecture(kind: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where attention is local, so that the beginning's memory is not shared."""
    monkeypatch.setattr(continuations, "_values_at_once", lambda *_: at_once)
    subject = load_subject(save_model(tmp_path / kind, kind), device="cpu")
    tokens = np.array([[5, 6, 7], [5, 6, 8], [9, 10, 11], [12, 3, 4]])
    before = np.array([20, 21, 22, 23, 24])
    scores, _ = score_rows(subject.model, [np.concatenate([before, row]) for row in tokens])
    expected = -scores[FIELDS.index("lp")].reshape(4, -1)[:, -3:].sum(axis=1)
    assert continuations.continuation_losses(subject.model, before, tokens) == pytest.approx(expected, rel=1e-4)
    first = continuations.continuation_losses(subject.model, before, tokens[[0, 2], :1])
    assert first == pytest.approx(-scores[FIELDS.index("lp")].reshape(4, -1)[[0, 2], -3], rel=1e-4)


def test_a_long_context_keeps_its_end(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bos", bos=True)
    subject = load_subject(folder, device="cpu")
    (place,) = CausalReader(subject.model, 12).places(passage("w1 " * 40 + "w2 w3 w9", "w9"), ["w9"])
    assert place.before.tolist() == [1, *[4] * 8, 5, 6], "BOS, and the ten tokens before the value"
    assert not CausalReader(subject.model, 12).unusable_reason(place)
    (bare,) = CausalReader(subject.model, 12).places(passage("w9 w2", "w9"), ["w9"])
    assert bare.before.tolist() == [1], "with BOS the very beginning can be asked of"
    (long,) = CausalReader(subject.model, 3).places(passage("w1 w2 w3 w4", "w2 w3 w4"), ["w2 w3 w4"])
    assert CausalReader(subject.model, 3).unusable_reason(long) == "longer than the 3 tokens that the model reads"


def test_greedy_completion_is_what_generate_writes(tmp_path: Path) -> None:
    subject = load_subject(new_model(tmp_path / "m", scale=4), device="cpu")
    reader = CausalReader(subject.model, 64)
    ids = torch.tensor([subject.model.tokenizer("wak wal")["input_ids"]])
    out = subject.model.network.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=2, eos_token_id=None, pad_token_id=0
    )
    own = " ".join(subject.model.tokenizer.convert_ids_to_tokens(out[0, 2:].tolist()))
    other = "wan" if own != "wan" else "wam"
    texts = [f"wak wal {own}", f"wak wal {other}"]
    places = [reader.places(passage(t, v), [v])[0] for t, v in zip(texts, (own, other), strict=True)]
    rows = reader.rows(places)
    found = reader.complete(subject.model, places, compute_scores(plan_scoring(subject.scorer, rows)))
    assert found.states.tolist() == [Completion.DISCLOSED, Completion.SAFE]
    assert found.logp == pytest.approx(-np.concatenate([reader.losses(subject.model, [p]) for p in places]), abs=1e-4)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked model that knows the first twenty texts by heart, and one that does not."""
    folder = tmp_path_factory.mktemp("masked")
    save(folder / "knows", "masked", learned=20, steps=200)
    save(folder / "never", "masked")
    write_data(folder / "data", "masked", 20, 1)
    return folder


def test_a_masked_model_sees_both_sides_and_hides_the_whole_value(masked: Path) -> None:
    subject = load_subject(masked / "never", device="cpu")
    reader = reader_of(subject, 32)
    assert isinstance(reader, MaskedReader)
    text = "the cat sat on a mat and a dog"
    values = ["sat on", "mat too", "sat the"]
    places = reader.places(passage(text, "sat on"), values)
    tokenizer, network = subject.model.tokenizer, subject.model.network
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    at = [i for i, token in enumerate(ids[0].tolist()) if token in tokenizer("sat on", add_special_tokens=False)[
        "input_ids"]][:2]  # fmt: skip
    ids[0, at] = tokenizer.mask_token_id
    with torch.inference_mode():
        logs = network(input_ids=ids).logits[0, at].log_softmax(1)
    for value, loss in zip(values, reader.losses(subject.model, places), strict=True):
        tokens = tokenizer(value, add_special_tokens=False)["input_ids"]
        assert loss == pytest.approx(-sum(float(logs[i, t]) for i, t in enumerate(tokens)), abs=1e-4)
    found = reader.complete(subject.model, places, NO_SCORES)
    assert found.logp == pytest.approx(-reader.losses(subject.model, places), abs=1e-5)
    (window,) = MaskedReader(subject, 8).places(passage(text, "dog"), ["dog"])  # type: ignore[arg-type]
    assert len(window.before) + len(window.tokens) + len(window.after) <= 8
    assert not reader.unusable_reason(window)


def test_masked_models_are_attacked_too(masked: Path, tmp_path: Path) -> None:
    texts = sentences(20, 1)
    lines = []
    for i, text in enumerate(texts):
        value = text.split()[1]
        others = [word for word in WORDS if word != value]
        names = ", ".join(f'"{word}"' for word in others)
        lines.append(
            f'{{"id": "{i}", "kind": "word", "value": "{value}", "records": [{i}], "candidates": [{names}]}}\n'
        )
    (tmp_path / "book.jsonl").write_text("".join(lines))
    request = SecretRequest(secrets=tmp_path / "book.jsonl", data=masked / "data.jsonl")
    found = judged(masked / "knows", request, masked / "never", task="masked-lm")
    named = {item.quantity: item for item in found.evidence}
    after, before = named["told first, trained"].estimate, named["told first, trained, before training"].estimate
    assert after is not None
    assert before is not None
    assert after > 0.5 > 0.3 > before
    (verdict,) = found.verdicts
    assert verdict.outcome.value == "REFUTED"
    assert set(found.arrays["secret.candidates"].tolist()) == {len(WORDS)}


def test_classifiers_write_no_secrets(tmp_path: Path) -> None:
    save(tmp_path / "bert", "bert")
    with pytest.raises(CommandError, match="--secrets asks which words a model fills in"):
        reader_of(load_subject(tmp_path / "bert", device="cpu"), 32)
