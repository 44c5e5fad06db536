from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from audits.membership.records import candidates_of, prepare
from audits.membership.workload import Workload
from audits.scores.causal import CausalScorer, CausalSubject
from audits.scores.forward import Batching, batches, score_rows, token_scores, trunk_and_head
from audits.scores.perplexity import perplexity
from audits.scores.rows import encode
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.table import FIELDS, ScoreTable, Skip
from privctl.data.records import Record
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import FloatFormat
from privctl.models.language import LanguageModel, load_model
from tests.audits.tiny import CONFIGS, save_model, save_tokenizer, sentences
from tests.few import few

P = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.05, 0.05, 0.9], [0.4, 0.4, 0.2]]


def score(model: LanguageModel, work: Workload) -> ScoreTable:
    return candidates_of(work, compute_scores(plan_scoring(CausalScorer(model), work.rows))).table


def records(texts: list[str]) -> list[Record]:
    return [Record(i, text) for i, text in enumerate(texts, start=1)]


def naive(model: LanguageModel, text: str, limit: int = 64) -> np.ndarray:
    """The scores by their definitions, one text, in double precision from transformers' own logits."""
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"][:, :limit]
    with torch.inference_mode():
        logits = model.network(input_ids=ids).logits[0, :-1].double()
    targets = ids[0, 1:]
    logp = logits.log_softmax(-1)
    p = logp.exp()
    lp = logp.gather(1, targets[:, None])[:, 0]
    mu = (p * logp).sum(-1)
    var = (p * (logp - mu[:, None]) ** 2).sum(-1)
    own = logits.gather(1, targets[:, None])
    rank = (logits > own).sum(-1)
    others = logits.scatter(1, targets[:, None], -math.inf).amax(-1)
    return torch.stack([lp, mu, var, rank, own[:, 0] - others, logits.logsumexp(-1)]).numpy()


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_toy_probabilities(shift: float) -> None:
    logits = torch.tensor(P).log() + shift
    lp, mu, var, rank, margin, lse = token_scores(logits, torch.tensor([0, 2, 1, 0, 1])).numpy().astype(float)
    close = 1e-5 if shift == 0 else 2e-3
    assert lp == pytest.approx([-0.356675, -1.203973, -1.386294, -2.995732, -0.916291], abs=close)
    assert lp.mean() == pytest.approx(-1.371793, abs=close)
    assert mu == pytest.approx([-0.801819, -0.897946, -1.039721, -0.394398, -1.054920], abs=close)
    assert np.sqrt(var) == pytest.approx([0.703126, 0.561528, 0.346574, 0.867112, 0.277259], abs=close)
    assert (lp - mu) / np.sqrt(var) == pytest.approx([0.633092, -0.544990, -1, -3, 0.5], abs=10 * close)
    assert rank.tolist() == [0, 1, 1, 1, 0]
    assert margin[0] == pytest.approx(math.log(3.5), abs=close)
    assert margin[4] == 0
    assert lse == pytest.approx([shift] * 5, abs=close)


def test_masked_vocabulary_has_finite_scores() -> None:
    logits = torch.tensor([[1.0, 2.0, -math.inf]])
    assert np.isfinite(token_scores(logits, torch.tensor([0])).numpy()).all()


@pytest.mark.parametrize(
    ("kind", "bos"),
    few(
        [
            ("gpt2", False),
            *(
                (kind, True) if kind == "gemma2" else pytest.param(kind, True, marks=pytest.mark.slow)
                for kind in CONFIGS
            ),
            *(pytest.param(kind, False, marks=pytest.mark.slow) for kind in CONFIGS if kind != "gpt2"),
        ],
        0,
    ),
)
def test_scores_equal_one_text_at_a_time(kind: str, bos: bool, tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path, kind, bos=bos), device="cpu")
    texts = sentences(40, seed=1, longest=90)
    values, offsets = score_rows(model, [row[:64] for row in encode(model, texts)], batching=Batching(tokens=200))
    for i, text in enumerate(texts):
        found = values[:, offsets[i] : offsets[i + 1]]
        assert found == pytest.approx(naive(model, text), abs=1e-4, rel=1e-4)
    assert values[0].std() > 0.3, "a model whose scores hardly vary would pass with wrong ones"


def test_a_shifted_target_would_be_noticed(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    text = sentences(1, seed=2)[0]
    values, _ = score_rows(model, encode(model, [text]))
    assert np.abs(values[0] - np.roll(naive(model, text)[0], 1)).max() > 0.1


def test_scores_do_not_depend_on_the_batch(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    rows = [row[:64] for row in encode(model, sentences(60, seed=3, longest=80))]
    together, _ = score_rows(model, rows, batching=Batching(tokens=4096))
    alone, _ = score_rows(model, rows, batching=Batching(tokens=1, logits=1))
    backwards, _ = score_rows(model, rows[::-1], batching=Batching(tokens=300))
    ends = np.cumsum([len(row) - 1 for row in rows[::-1]])[:-1]
    restored = np.concatenate(np.split(backwards, ends, axis=1)[::-1], axis=1)
    assert together == pytest.approx(alone, abs=1e-4)
    assert together == pytest.approx(restored, abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "neox"])
def test_only_real_positions_are_projected_and_few_at_once(kind: str, tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path, kind), device="cpu")
    shapes: list[tuple[int, ...]] = []
    model.network.get_output_embeddings().register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape)))
    rows = encode(model, sentences(100, seed=4))
    score_rows(model, rows, batching=Batching(tokens=1000, logits=40 * model.vocabulary))
    scoring = [shape for shape in shapes if len(shape) == 2]
    assert sum(shape[0] for shape in scoring) == sum(len(row) - 1 for row in rows)
    assert max(shape[0] for shape in scoring) == 40


def test_post_processed_logits_run_the_whole_model(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path, "gemma2"), device="cpu")
    values, _ = score_rows(model, encode(model, sentences(5, seed=5)))
    assert np.abs(values[FIELDS.index("margin")]).max() <= 4.0, "capped at 2, two logits differ by at most 4"


def test_batches_cover_every_row_with_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(2, 120, 2000)
    plan = list(batches(lengths, 2048))
    assert sorted(i for batch in plan for i in batch) == list(range(2000))
    sizes = [len(batch) * lengths[batch].max() for batch in plan]
    assert max(sizes) <= 2048
    assert sum(sizes) < 1.05 * lengths.sum()
    assert [len(batch) for batch in batches(np.array([5000, 3]), 2048)] == [1, 1]


def _widths(model: LanguageModel, rows: list[np.ndarray]) -> list[int]:
    """The width of each batch of one row."""
    trunk_and_head(model)
    seen: list[int] = []
    handle = model.network.get_input_embeddings().register_forward_hook(lambda _, ids, out: seen.append(out.shape[1]))
    score_rows(model, rows, batching=Batching(tokens=1))
    handle.remove()
    return seen


def test_in_half_precision_widths_are_multiples_of_16_where_that_is_cheap_and_fits(llama: Path) -> None:
    """The context is 64. From 56 to 64 would be a seventh more, from 61 less than a sixteenth."""
    half = load_model(llama, device="cpu", precision=FloatFormat.BFLOAT16)
    rows = [np.full(length, 5) for length in (64, 61, 56, 47, 16, 15)]
    assert _widths(half, rows) == [64, 64, 56, 48, 16, 15]
    assert _widths(load_model(llama, device="cpu"), rows) == [64, 61, 56, 47, 16, 15]
    half.network.config.max_position_embeddings = 62
    assert _widths(half, rows[1:]) == [61, 56, 48, 16, 15]


def test_a_model_is_taken_apart_once(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    rows = encode(model, ["w1 w2 w3"])
    passes: list[int] = []
    model.network.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    for expected in (3, 4, 5):  # the network and its trunk, then the row
        score_rows(model, rows)
        assert len(passes) == expected
    other = load_model(llama, device="cpu")
    assert trunk_and_head(other) == (other.network.model, other.network.lm_head)
    assert trunk_and_head(model) == (model.network.model, model.network.lm_head)


def test_a_network_that_changed_is_taken_apart_again_as_another_model(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    assert trunk_and_head(model) is not None

    def scale(_: Any, __: Any, output: Any) -> Any:
        output.logits = 2 * output.logits
        return output

    model.network.register_forward_hook(scale)
    assert trunk_and_head(replace(model)) is None


def test_a_network_that_looks_ahead_is_refused(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    for layer in model.network.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(InputError, match="not a causal language model"):
        score_rows(model, encode(model, ["w1 w2 w3"]))


def test_what_is_left_out_is_counted_with_its_line(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    members = records(["w1 w2 w3", "w4 w5", "w1 w2 w3", "w9", "w6 w7"])
    nonmembers = records(["w6 w7", "w8 w9 w1", "w8 w9 w1", "w2 w8"])
    table = score(model, prepare(CausalSubject(model), members, nonmembers))
    assert table.skip_counts() == {
        (True, Skip.TOO_SHORT): 1,
        (True, Skip.REPEATED): 2,
        (True, Skip.IN_BOTH): 1,
        (False, Skip.REPEATED): 2,
        (False, Skip.IN_BOTH): 1,
    }
    assert table.line.tolist() == [2, 4]
    assert table.member.tolist() == [True, False]
    assert sorted(table.skipped_line[table.skipped_member].tolist()) == [1, 3, 4, 5]
    assert table.samples == {"members": 1, "nonmembers": 1}


def test_bos_makes_one_token_enough(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path, bos=True), device="cpu")
    subject = CausalSubject(model)
    assert subject.describe()["bos"] == "prepended, not scored"
    work = prepare(subject, records(["w1"]), records(["w2"]))
    assert [row.tolist() for row in work.rows] == [[1, 4], [1, 5]]


def test_truncation_is_counted(llama: Path) -> None:
    model = load_model(llama, device="cpu")
    work = prepare(CausalSubject(model, max_length=3), records(["w1 w2 w3 w4 w5", "w1 w2 w3"]), records(["w7 w8"]))
    assert work.truncated.tolist() == [True, False, False]
    with pytest.raises(CommandError, match="at most 64 tokens"):
        prepare(CausalSubject(model, max_length=65), records(["w1 w2"]), records(["w3 w4"]))


def test_nan_weights_are_named_with_the_record(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path), device="cpu")
    with torch.no_grad():
        model.network.get_input_embeddings().weight[3 + 7] = math.nan
    work = prepare(CausalSubject(model), records(["w1 w2", "w3 w4"]), records(["w5 w6", "w5 w8", "w1 w7 w2"]))
    # the head is not tied here, so that only the record with w7 is hit
    table = score(model, work)
    assert table.skip_counts() == {(False, Skip.NOT_FINITE): 1}
    assert table.skipped_line.tolist() == [3]
    assert table.line.tolist() == [1, 2, 1, 2]
    with pytest.raises(InputError, match="NaN"):
        perplexity(model, ["w1 w7 w2"])


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    save_tokenizer(tmp_path, words=[f"x{i}" for i in range(90)])
    with pytest.raises(InputError, match="gives id 92, but the model knows 63 tokens"):
        encode(load_model(tmp_path, device="cpu"), ["x89"])


def test_perplexity_weighs_every_token_alike(llama: Path) -> None:
    """By transformers' own loss on the ids of a training, whose last is the end-of-text token."""
    model, total, tokens = load_model(llama, device="cpu"), 0.0, 0
    texts = [*sentences(10, seed=6), "w1"]
    for text in texts:
        ids = torch.tensor([[*model.tokenizer(text)["input_ids"], model.tokenizer.eos_token_id]])
        with torch.inference_mode():
            total += float(model.network(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    assert perplexity(model, ["", *texts]) == pytest.approx(math.exp(total / tokens), rel=1e-5)
    with pytest.raises(InputError, match="none of the 1 texts has 2 tokens"):
        perplexity(model, [""])


STORIES = Path(__file__).parents[3] / ".." / "shared" / "data" / "stories260k"


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.is_dir(), reason="the real data is not beside this checkout")
def test_a_real_model_prefers_stories() -> None:
    model = load_model(STORIES, device="cpu")
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    assert perplexity(model, [story]) < 4
    plays = (STORIES.parent / "text" / "tinyshakespeare.txt").read_text().split("\n\n")[:20]
    assert perplexity(model, plays) > 20
    values, _ = score_rows(model, [row[:64] for row in encode(model, plays)])
    assert values == pytest.approx(np.concatenate([naive(model, play) for play in plays], axis=1), abs=1e-3, rel=1e-3)
