from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from tokenizers import Tokenizer, models

from audits.extraction.alike import ALIKE
from audits.extraction.audit import ExtractionAudit
from audits.extraction.law import SamplingLaw
from audits.extraction.reach import detectable
from audits.extraction.request import ExtractionRequest
from audits.extraction.summary import CUED, QueryBudget
from audits.extraction.windows import SkippedReason, cues, lengths, sample, sides, text_shape
from audits.findings import Findings
from audits.scores.causal import CausalScorer
from audits.scores.scorer import compute_scores, plan_scoring
from audits.statistics.metrics import clopper_pearson
from privctl.data.columns import Columns
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome
from privctl.models.language import LanguageModel, load_model
from privctl.parallel import ALONE, Workers
from tests.audits.tiny import WORDS, save_model, write_jsonl
from tests.audits.turns import Turns
from verify.audits.extraction.exact_tests import miscounted

PREFIX, SUFFIX = 6, 5


def words(ids: np.ndarray) -> str:
    return " ".join(WORDS[i - 3] for i in ids.tolist())


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


@pytest.fixture(scope="module")
def known(model: LanguageModel) -> list[str]:
    """Texts that greedy decoding goes on with, made of words only, each in its own way."""
    prefixes = torch.from_numpy(np.random.default_rng(3).integers(3, 63, (300, PREFIX)))
    out = model.network.generate(
        prefixes, attention_mask=torch.ones_like(prefixes), do_sample=False, max_new_tokens=SUFFIX, eos_token_id=None,
        pad_token_id=0,
    ).numpy()  # fmt: skip
    found = {words(row[PREFIX:]): words(row) for row in out if (row > 2).all()}
    assert len(found) >= 40
    return list(found.values())[:40]


def noise(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [words(random.integers(3, 63, PREFIX + SUFFIX + 3)) for _ in range(count)]


def judged(
    model: LanguageModel, train: Path, heldout: Path | None = None, workers: Workers = ALONE, **settings: Any
) -> Findings:
    settings = {"prefix_tokens": PREFIX, "suffix_tokens": SUFFIX} | settings
    part = ExtractionAudit(model, ExtractionRequest(train=train, heldout=heldout, **settings), workers=workers)
    return part.judge(compute_scores(plan_scoring(CausalScorer(model), part.rows)), 0.05)


@pytest.mark.parametrize("settings", [{"greedy_only": True}, {"law": SamplingLaw(top_k=40)}])
def test_processes_share_a_pass_of_its_own(
    settings: dict[str, Any], model: LanguageModel, files: tuple[Path, Path]
) -> None:
    """As where the shared scores do not suffice: without sampling, or where the law is not the model's own."""
    workers = Turns()
    alone, shared = judged(model, *files, **settings), judged(model, *files, workers=workers, **settings)
    assert workers.shares[0] == [1, 1, 1]
    for name, values in alone.arrays.items():
        np.testing.assert_allclose(shared.arrays[name], values, rtol=1e-4, atol=1e-5)
    for item, theirs in zip(shared.evidence, alone.evidence, strict=True):
        assert item.estimate == (None if theirs.estimate is None else pytest.approx(theirs.estimate, rel=1e-4))


def named(found: Findings) -> dict[str, Evidence]:
    return {item.quantity: item for item in found.evidence}


@pytest.fixture
def files(known: list[str], tmp_path: Path) -> tuple[Path, Path]:
    """Of 40 + 40 distinct training texts half are extractable, some of them repeated; of 30 held-out ones none."""
    copied = [known[0]] * 12 + [f"{known[1]} w{i}" for i in range(3)]
    train = write_jsonl(tmp_path / "train.jsonl", [*known, *noise(40, 1), *copied, "w1 w2"])
    return train, write_jsonl(tmp_path / "held.jsonl", [*noise(30, 2), known[2]])


@pytest.mark.parametrize(
    "settings", [{}, {"greedy_only": True}, {"exact_only": True}, {"law": SamplingLaw(top_k=40), "exact_only": True}]
)
def test_rates_counts_and_what_is_left_out(
    settings: dict[str, Any], model: LanguageModel, files: tuple[Path, Path]
) -> None:
    found = judged(model, *files, **settings)
    rates = named(found)
    train, held = rates["rate on training text"], rates["rate on held-out text"]
    assert (train.details["texts"], train.details["extracted"]) == (80, 40)
    assert (held.details["texts"], held.details["extracted"]) == (30, 0)
    number = (7 if settings.get("greedy_only") else 10) + (0 if settings.get("exact_only") else 4)
    assert len([item for item in found.evidence if not item.quantity.endswith(ALIKE)]) == number
    assert (train.lower, train.upper) == pytest.approx(clopper_pearson(40, 80, 0.05 / number))
    assert train.details["detectable"] == pytest.approx(1 - (0.05 / number) ** (1 / 80))
    assert rates["rate on text in 1 document"].details["extracted"] == 38
    assert rates["rate on text in 2 to 9 documents"].details["extracted"] == 1
    assert rates["rate on text in 10 to 99 documents"].details["extracted"] == 1
    assert rates["rate on text in 100 or more documents"].estimate is None
    assert "no suffix occurs" in rates["rate on text in 100 or more documents"].reason
    beyond = found.evidence[0]
    assert beyond.quantity == "rate beyond held-out text"
    assert beyond.details["in_both"] == 1
    cued = found.arrays["extraction.cue"][found.arrays["extraction.train"]] > CUED
    assert cued.sum() == 2
    assert (beyond.details["repeated"], beyond.details["repeated_extracted"]) == (2, 2)
    left = 79 - 2 - 2
    assert beyond.details["training_texts"] == left, "not what both files hold, what repeats, or what may be copied"
    assert beyond.lower is not None
    assert beyond.details["chance"] < beyond.lower < beyond.estimate
    assert [(item.what, item.reason) for item in found.omissions] == [
        ("1 record of train.jsonl in extraction (line 96)", SkippedReason.TOO_SHORT.reason),
        (
            "15 records of train.jsonl in extraction (line 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, ...)",
            SkippedReason.REPEATED.reason,
        ),
        ("1 record of held.jsonl in extraction (line 31)", SkippedReason.IN_TRAINING.reason),
    ]


def test_arrays_have_a_line_for_every_record(model: LanguageModel, files: tuple[Path, Path]) -> None:
    arrays = {name.removeprefix("extraction."): array for name, array in judged(model, *files).arrays.items()}
    assert {len(arrays[name]) for name in ("train", "line", "matched", "greedy", "copies", "logp", "cue")} == {110}
    assert {len(arrays[name]) for name in ("skipped_train", "skipped_line", "skipped_reason")} == {17}
    assert arrays["copies"][:3].tolist() == [13, 4, 1]
    assert arrays["greedy"][:40].all()
    assert (arrays["matched"] == SUFFIX).tolist() == arrays["greedy"].tolist()
    assert sorted([*arrays["line"][arrays["train"]], *arrays["skipped_line"][arrays["skipped_train"]]]) == [
        *range(1, 97)
    ]


def test_discoverable_texts_under_two_laws(model: LanguageModel, files: tuple[Path, Path]) -> None:
    queries = QueryBudget(count=10, probability=0.5)
    plain = judged(model, files[0], queries=queries)
    sharp = judged(model, files[0], queries=queries, law=SamplingLaw(temperature=0.25))
    name = "training text found in 10 queries with probability 0.5"
    logp = plain.arrays["extraction.logp"]
    assert named(plain)[name].details["extracted"] == (1 - (1 - np.exp(logp)) ** 10 >= 0.5).sum()
    assert (sharp.arrays["extraction.logp"][:40] > logp[:40]).all(), "what is likeliest at each step gets likelier"
    never = judged(model, files[0], queries=queries, law=SamplingLaw(top_k=1)).arrays["extraction.logp"]
    assert never[:40].tolist() == [0] * 40
    assert (never[40:] == -np.inf).all()


def test_the_model_alone_gives_the_same_sums(model: LanguageModel, files: tuple[Path, Path]) -> None:
    found = judged(model, files[0])
    text = " ".join(noise(40, 1)[0].split()[: PREFIX + SUFFIX])
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
    logp = model.network(input_ids=ids).logits[0, :-1].double().log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
    assert found.arrays["extraction.logp"][40] == pytest.approx(float(logp[-SUFFIX:].sum()), abs=1e-4)


def test_a_window_of_the_shared_scores_costs_nothing(model: LanguageModel, files: tuple[Path, Path]) -> None:
    settings = {"prefix_tokens": PREFIX, "suffix_tokens": SUFFIX}
    part = ExtractionAudit(model, ExtractionRequest(train=files[0], **settings))
    whole = [model.tokenizer(text, return_tensors="np")["input_ids"][0] for text in noise(40, 1)]
    book = compute_scores(plan_scoring(CausalScorer(model), [*part.rows, *whole]))
    assert book.values.shape[1] == 40 * (PREFIX + SUFFIX - 1) + 40 * (PREFIX + SUFFIX + 2)
    assert not ExtractionAudit(model, ExtractionRequest(train=files[0], greedy_only=True, **settings)).rows


def test_a_short_prefix_is_a_choice(model: LanguageModel, known: list[str], tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [known[0], *(text.partition(" ")[2] for text in noise(3, 5))])
    found = judged(model, train, prefix_tokens=9, least_prefix=PREFIX, greedy_only=True)
    assert named(found)["rate on training text"].details["extracted"] == 1
    assert named(found)["rate on training text"].details["texts"] == 4
    assert any("4 training texts have a prefix of fewer than 9 tokens" in line for line in found.warnings)
    with pytest.raises(InputError, match="no record of 14 tokens"):
        judged(model, train, prefix_tokens=9)


def test_a_sample_is_drawn_by_its_seed(model: LanguageModel, files: tuple[Path, Path]) -> None:
    lines = [judged(model, files[0], records=20, seed=seed).arrays["extraction.line"].tolist() for seed in (1, 1, 2)]
    assert lines[0] == lines[1] != lines[2]
    copies = judged(model, files[0], records=20, seed=1).arrays["extraction.copies"]
    whole = judged(model, files[0]).arrays
    expected = dict(zip(whole["extraction.line"].tolist(), whole["extraction.copies"].tolist(), strict=True))
    assert [expected.get(line, count) for line, count in zip(lines[0], copies.tolist(), strict=True)] == copies.tolist()


def test_texts_are_split_by_tokens_not_by_characters(model: LanguageModel, tmp_path: Path) -> None:
    """Of a string cut in two, a tokenizer that merges across the cut gives other tokens than the text's own."""
    merging = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))

    class Merging:
        bos_token_id = None

        def __call__(self, texts: Any, **_: Any) -> dict[str, Any]:
            one = isinstance(texts, str)
            ids = [each.ids for each in merging.encode_batch([texts] if one else list(texts))]
            return {"input_ids": ids[0] if one else ids}

    odd = LanguageModel(
        path=model.path, folder=model.folder, network=model.network, tokenizer=Merging(), device=model.device
    )
    train = write_jsonl(tmp_path / "train.jsonl", ["aabab"])
    (row,) = sample(odd, text_shape(odd, 1, 2, None), train, limit=None, seed=0).rows
    assert row.tolist() == [0, 2, 2]
    halves = merging.encode_batch(["aa", "bab"])
    assert [*halves[0].ids, *halves[1].ids] == [0, 0, 1, 2], "cutting the string would ask for tokens that never came"


def test_copying_is_flagged() -> None:
    rows = [np.array([5, 6, 7, 5, 6]), np.array([5, 6, 7, 5, 9]), np.array([5, 6, 7, 8, 9])]
    assert cues(rows, 2).tolist() == [1, 0.5, 0]


def test_weights_of_zero_and_of_nan(tmp_path: Path, files: tuple[Path, Path]) -> None:
    model = load_model(save_model(tmp_path / "m"), device="cpu")
    for parameter in model.network.parameters():
        parameter.zero_()
    for greedy_only in (False, True):
        found = judged(model, *files, greedy_only=greedy_only)
        assert named(found)["rate on training text"].details["extracted"] == 0
        for item in found.evidence:
            numbers = [item.estimate, item.lower, item.upper, *item.details.values()]
            assert all(math.isfinite(number) for number in numbers if number is not None)
        if not greedy_only:
            assert found.arrays["extraction.logp"] == pytest.approx(-SUFFIX * math.log(63), rel=1e-5)
    embedding = model.network.get_input_embeddings().weight
    embedding[3 + 7] = math.nan
    for greedy_only in (False, True):
        left = [
            o
            for o in judged(model, *files, greedy_only=greedy_only).omissions
            if o.reason == SkippedReason.NOT_FINITE.reason
        ]
        assert len(left) == 2
    embedding.fill_(math.nan)
    with pytest.raises(InputError, match="NaN or infinite scores to every text"):
        judged(model, *files)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"prefix_tokens": 60}, "65 tokens, but .* sees at most 64"),
        ({"suffix_tokens": 0}, "--suffix-tokens is 0"),
        ({"least_prefix": 7}, "--least-prefix is 7, more than --prefix-tokens 6"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, int], complaint: str, model: LanguageModel, files: tuple[Path, Path]
) -> None:
    with pytest.raises(CommandError, match=complaint):
        judged(model, files[0], **settings)


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [((None, None), (31, 31)), ((None, 50), (13, 50)), ((20, None), (20, 43)), ((3, 4), (3, 4)), ((60, 9), (60, 9))],
)
def test_lengths_that_are_not_stated_fit_the_context(
    stated: tuple[int | None, int | None], wanted: tuple[int, int]
) -> None:
    assert lengths(63, *stated) == wanted
    assert lengths(100, None, None) == lengths(None, None, None) == (50, 50)
    assert lengths(None, None, 7) == (50, 7)
    assert lengths(1, None, None) == (1, 1)  # which text_shape refuses


def test_a_short_context_is_halved(model: LanguageModel, tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [" ".join(["w1", "w2"] * 40)])
    part = ExtractionAudit(model, ExtractionRequest(train=train))
    assert (part._shape.prefix + part._shape.suffix + part._shape.bos) in (63, 64)


def test_impossible_queries_are_refused() -> None:
    with pytest.raises(CommandError, match="--queries is 0"):
        QueryBudget(count=0)
    with pytest.raises(CommandError, match="--query-probability is 1"):
        QueryBudget(probability=1)


def test_one_file_on_both_sides_is_refused(model: LanguageModel, files: tuple[Path, Path]) -> None:
    with pytest.raises(CommandError, match="same file"):
        judged(model, files[0], files[0])


@pytest.mark.parametrize("seen", [0, 30])
def test_what_a_comparison_could_have_shown(seen: int) -> None:
    """At that rate and no less, four of five samples lie above what was seen of held-out text."""
    rate = detectable(200, seen, 100, 0.01)
    assert rate is not None
    bar = clopper_pearson(seen, 100, 0.005)[1]
    detected = [clopper_pearson(count, 200, 0.005)[0] > bar for count in range(201)]
    noticed = float(np.dot(binom.pmf(np.arange(201), 200, rate), detected))
    assert noticed == pytest.approx(0.8, abs=1e-6)
    assert detectable(3, 0, 3, 0.01) is None


def test_equal_rates_are_seldom_told_apart() -> None:
    """Two samples of one source: the interval of the difference leaves out 0 in at most the share it may."""
    random = np.random.default_rng(0)
    wrong = 0
    for a, b in random.binomial(100, 0.2, (400, 2)).tolist():
        (low, _), (_, high) = clopper_pearson(a, 100, 0.025), clopper_pearson(b, 100, 0.025)
        wrong += low > high
    assert wrong <= 0.025 * 400


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_model_writes_anyway_accuses_it_only_where_copies_were_kept_together(
    model: LanguageModel, known: list[str], tmp_path: Path, *, shared: bool
) -> None:
    """Lines that fell on their sides one by one: of texts that stand twice, those with both lines here are left."""
    train = write_jsonl(tmp_path / "train.jsonl", [*known[:20] * 2, *noise(40, 1), *known[20:39]])
    held = write_jsonl(tmp_path / "held.jsonl", [*noise(60, 2), *(known[20:39] if shared else ())])
    found = judged(model, train, held, greedy_only=True).verdicts[0]
    if shared:
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "20 training texts that repeat come out too" in found.reason
    else:
        assert found.outcome is Outcome.REFUTED


def test_texts_of_both_files_are_no_training_text_by_sampling_either(
    model: LanguageModel, known: list[str], tmp_path: Path
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [*known, *noise(30, 1)])
    held = write_jsonl(tmp_path / "held.jsonl", [*known, *noise(30, 2)])
    found = judged(model, train, held, exact_only=True, law=SamplingLaw(temperature=0.05))
    rates = {item.quantity: item for item in found.evidence if " text found in " in item.quantity}
    assert [item.estimate for item in rates.values()] == [pytest.approx(40 / 70), 0.0], "all that it knows"
    assert found.verdicts[0].outcome is not Outcome.REFUTED


def test_texts_of_both_files_are_looked_for_among_all_records(model: LanguageModel, tmp_path: Path) -> None:
    """None that is drawn is shared, and those that repeat are compared no more, because others are shared."""
    shape = text_shape(model, PREFIX, SUFFIX, None)
    both, repeated = noise(1, 11), noise(1, 12)
    others = noise(60, 13)
    columns = Columns()
    train = write_jsonl(tmp_path / "t.jsonl", [*repeated, *others[:30], *both, *repeated])
    held = write_jsonl(tmp_path / "h.jsonl", [*others[30:], *both])
    apart = write_jsonl(tmp_path / "a.jsonl", others[30:])
    for seed in range(200):
        drawn = [sample(model, shape, path, limit=4, seed=seed, columns=columns) for path in (train, held)]
        first = sides(model, shape, drawn, columns=columns)
        if not any(side.shared.any() for side in first) and drawn[0].repeated.any():
            break
    assert [side.in_both for side in first] == [1, 1]
    assert not any(side.shared.any() for side in first)
    assert not (first[0].compared & drawn[0].repeated).any()
    alone = sides(model, shape, [drawn[0], sample(model, shape, apart, limit=4, seed=0, columns=columns)])
    assert [side.in_both for side in alone] == [0, 0]
    assert alone[0].compared.all()


def test_miscounted_texts_of_both_files_are_found() -> None:
    item = Evidence(
        method="extraction", quantity="rate beyond held-out text", estimate=0.0, details={"in_both": 2, "repeated": 1}
    )
    assert "only 1 are in both" in miscounted(item, {"windows_in_both_files": 1})
    assert "no text of both files says why" in miscounted(
        Evidence(method=item.method, quantity=item.quantity, estimate=0.0, details={"repeated": 1}),
        {"windows_in_both_files": 0},
    )
    assert not miscounted(item, {"windows_in_both_files": 2})
    assert not miscounted(item, {})
