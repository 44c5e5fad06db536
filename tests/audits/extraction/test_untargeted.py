"""Prompts from outside and repetition: planted text is found, and a model that never saw it gives nothing."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from audits.extraction import decoding, prompts, untargeted
from audits.extraction.came_out import FileMatches, SearchedFile, comparable, drawn, usable
from audits.extraction.generation import Queries, continuations
from audits.extraction.law import SamplingLaw, draw, restricted
from audits.extraction.prompts import CONTROL, DIVERGENCE, FROM_FILE, PromptSet
from audits.extraction.summary import BEYOND, NEAR_BEYOND
from audits.extraction.untargeted import COST, OVER_CONTROL, PromptOutcome, UntargetedRequest, WrittenTexts
from audits.statistics.metrics import clopper_pearson
from audits.statistics.two_rates import fisher
from privctl.cli import run
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome as Verdict
from privctl.models.language import LanguageModel, load_model
from privctl.parallel import ALONE
from privctl.reports.files import read_report
from tests.audits.extraction.test_part import words
from tests.audits.tiny import CONFIGS, SIZE, save_model, save_tokenizer, write_jsonl
from tests.audits.turns import Turns
from tests.verify.audits.test_reach import report as audit_report
from verify.audits.consistency import faults
from verify.audits.extraction import exact_tests as extraction_tests

#: Tokens before a record that a model is trained on, those of a record, and of a span.
FRONT, RECORD, SPAN = 10, 16, 8
#: Records that prompts open, and as many that repetition does.
COUNT = 12
TOLD = ["--prefix-tokens", "4", "--suffix-tokens", str(SPAN), "--continuations", "2", "--device", "cpu", "-q"]


def texts(count: int, seed: int, length: int = RECORD) -> list[str]:
    return [words(row) for row in np.random.default_rng(seed).integers(3, SIZE, (count, length))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that goes on with 12 records after prompts, and with 12 after a word repeated; their files."""
    folder = tmp_path_factory.mktemp("planted")
    random = np.random.default_rng(0)
    records = random.integers(3, SIZE, (2 * COUNT, RECORD))
    fronts = random.integers(3, SIZE, (COUNT, FRONT))
    repeated = np.repeat(random.permutation(np.arange(3, SIZE))[:COUNT, None], FRONT, axis=1)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    ids = torch.from_numpy(np.concatenate([np.concatenate([fronts, repeated]), records], axis=1))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    with torch.enable_grad():
        for _ in range(120):
            optimizer.zero_grad()
            network(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    network.save_pretrained(folder / "model")
    save_tokenizer(folder / "model")
    save_model(folder / "other")
    write_jsonl(folder / "train.jsonl", [*map(words, records)])
    write_jsonl(folder / "held.jsonl", texts(2 * COUNT, 1))
    (folder / "prompts.txt").write_text("".join(f"{line}\n" for line in [*map(words, fronts), *texts(5, 2, FRONT)]))
    return folder


def audited(folder: Path, model: str, *more: str) -> PrivacyReport:
    files = ["--train", str(folder / "train.jsonl"), "--held-out", str(folder / "held.jsonl")]
    asked = ["--prompts", str(folder / "prompts.txt"), "--divergence", "--sampling-seed", "5"]
    output = folder / f"{model}.audit.report.json"
    call = ["audit", "extraction", str(folder / model), *files, *asked, *TOLD, "-f", "-o", str(output), *more]
    assert run(call) == 0
    return read_report(output)


@pytest.fixture(scope="module")
def found(folder: Path) -> PrivacyReport:
    return audited(folder, "model", "--leaks", str(folder / "leaks.jsonl"))


def of(report: PrivacyReport, method: str) -> dict[str, Evidence]:
    return {item.quantity: item for item in report.evidence if item.method == method}


def test_planted_records_come_out(found: PrivacyReport, folder: Path) -> None:
    outside, repeated, control = (of(found, method) for method in (FROM_FILE, DIVERGENCE, CONTROL))
    assert outside[BEYOND].details["training_extracted"] >= 9
    assert outside[BEYOND].details["held_out_extracted"] == 0
    assert outside[BEYOND].details["detected"] == 1
    assert outside["rate on training text"].details["longest_tokens"] == RECORD
    assert outside["rate on training text"].details["characters"] > 9 * RECORD * 2
    assert repeated[BEYOND].details["training_extracted"] >= 5
    assert repeated[COST].details["diverged"] >= 4
    assert repeated[COST].details["left_after_mean"] < 30
    assert control[BEYOND].details["training_extracted"] < repeated[BEYOND].details["training_extracted"]
    over = repeated[OVER_CONTROL].details
    assert over["repeating_extracted"] > over["control_extracted"]
    (verdict,) = found.verdicts
    assert verdict.outcome is Verdict.REFUTED
    assert "after prompts from a file" in verdict.reason
    asked = found.parameters["extraction"]
    assert asked["sampling_seed"] == 5
    giving = asked["prompts_giving"][FROM_FILE]
    assert sum(line <= COUNT for line in giving) >= 9
    assert asked["prompts"] == {FROM_FILE: COUNT + 5, DIVERGENCE: prompts.TOKENS, CONTROL: prompts.TOKENS}


def test_what_one_record_costs(found: PrivacyReport) -> None:
    item = of(found, FROM_FILE)[COST]
    queries, giving = int(item.details["queries"]), int(item.details["giving"])
    assert queries == 2 * (COUNT + 5)
    low, high = clopper_pearson(giving, queries, 1 - item.confidence)
    assert (item.estimate, item.lower, item.upper) == pytest.approx((queries / giving, 1 / high, 1 / low))


def test_no_text_leaves_the_machine(found: PrivacyReport, folder: Path) -> None:
    lines = [json.loads(line)["text"] for line in (folder / "train.jsonl").read_text().splitlines()]
    written = (folder / "leaks.jsonl").read_text()
    for text in ((folder / "model.audit.report.json").read_text(), written):
        assert not any(line in text or line.partition(" ")[0] + " " in text for line in lines)
    assert stat.S_IMODE((folder / "leaks.jsonl").stat().st_mode) == 0o600
    extracted = {each["line"] for each in map(json.loads, written.splitlines()) if each["extracted"]}
    assert len(extracted) >= of(found, FROM_FILE)["rate on training text"].details["extracted"]


def test_a_model_that_never_saw_them(folder: Path) -> None:
    report = audited(folder, "other")
    for method in (FROM_FILE, DIVERGENCE, CONTROL):
        items = of(report, method)
        assert items["rate on training text"].details["extracted"] == 0
        assert items[COST].estimate is None
        assert items[COST].lower is not None
        assert all(not item.details.get("detected") for item in items.values())
    assert report.verdicts[0].outcome is not Verdict.REFUTED


@pytest.mark.slow
def test_prompts_alone_and_by_argmax_alone(folder: Path) -> None:
    files = ["--train", str(folder / "train.jsonl"), "--held-out", str(folder / "held.jsonl")]
    arguments = [word for word in TOLD if word not in ("--continuations", "2")]
    asked = [*files, "--prompts", str(folder / "prompts.txt"), *arguments, "--greedy-only", "--records", "20", "-f"]
    assert run(["audit", "extraction", str(folder / "model"), *asked, "-o", str(folder / "g.report.json")]) == 0
    report = read_report(folder / "g.report.json")
    assert not of(report, DIVERGENCE)
    assert "sampling_seed" not in report.parameters["extraction"]
    assert of(report, FROM_FILE)[COST].details["queries"] == COUNT + 5
    assert of(report, FROM_FILE)[BEYOND].samples == {"training": 20, "held_out": 20}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--continuations", "3"], "--continuations needs --prompts or --divergence"),
        (["--sampling-seed", "3"], "--sampling-seed needs --prompts or --divergence"),
        (["--divergence"], "need --held-out"),
        (["--divergence", "--held-out", "H", "--continuation-tokens", "7"], "--continuation-tokens is 7, and"),
        (["--divergence", "--held-out", "H", "--continuation-tokens", "64"], "sees at most 64 tokens"),
        (["--divergence", "--held-out", "H", "--greedy-only", "--continuations", "2"], "continues each prompt once"),
        (["--prompts", "nowhere.txt", "--held-out", "H"], "nowhere.txt"),
    ],
)
def test_bad_requests_are_refused(
    options: list[str], complaint: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(folder / "held.jsonl") if word == "H" else word for word in options]
    call = ["audit", "extraction", str(folder / "other"), "--train", str(folder / "train.jsonl")]
    call += ["--suffix-tokens", "8"]
    before = sorted(folder.iterdir())
    assert run([*call, "--prefix-tokens", "4", *arguments, "-o", str(folder / "bad.report.json")]) in (2, 3)
    assert complaint in capfd.readouterr().err
    assert sorted(folder.iterdir()) == before


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


def test_texts_do_not_depend_on_the_batch(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text by argmax is transformers' own; what is drawn is the same alone, in other batches and by processes."""
    rows = [np.random.default_rng(i).integers(3, SIZE, 5 + i % 2) for i in range(6)]
    queries = Queries(count=3, tokens=9, law=SamplingLaw(top_k=20))
    found = continuations(model, rows, queries, 7)
    assert found is not None
    for i, row in enumerate(rows):
        ids = torch.from_numpy(row)[None]
        out = model.network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=9, pad_token_id=0
        )
        expected = out[0, len(row) :].tolist()
        assert found[3 * i].tolist() == expected[: expected.index(2) if 2 in expected else None]
    monkeypatch.setattr(decoding, "TOGETHER", 2)
    for again in (continuations(model, rows, queries, 7), continuations(model, rows, queries, 7, Turns())):
        assert again is not None
        assert [text.tolist() for text in again] == [text.tolist() for text in found]
    other = continuations(model, rows, queries, 8)
    assert other is not None
    assert [text.tolist() for text in other] != [text.tolist() for text in found]


@pytest.mark.parametrize("law", [SamplingLaw(), SamplingLaw(temperature=0.5, top_k=3), SamplingLaw(top_p=0.8)])
def test_draws_follow_the_law(law: SamplingLaw) -> None:
    """Evenly spaced numbers give each token as often as its probability says."""
    logits = torch.log(torch.tensor([[0.15, 0.5, 0.05, 0.3]]))
    numbers = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    tokens = draw(logits.expand(4000, -1), numbers, law)
    shares = torch.bincount(tokens, minlength=4) / 4000
    assert torch.allclose(shares, restricted(logits, law).softmax(dim=1)[0], atol=1e-3)


def test_a_repetition_and_where_it_ends() -> None:
    vocabulary = {1: "poem", 2: ",", 3: "", 4: "my", 5: "poem"}
    for text, place in (([1, 2, 5, 3, 4, 1], 4), ([4, 1], 0), ([1, 1], 2), ([], 0), ([2, 4], 1)):
        assert prompts.repetition_length(np.array(text, dtype=np.int64), "poem", vocabulary) == place


def test_prompts_of_every_kind(model: LanguageModel, tmp_path: Path) -> None:
    repeated, control = prompts.repetitions(model, 0, 20)
    assert len(repeated.rows) == len(control.rows) == prompts.TOKENS
    assert all(len(set(row.tolist())) == 1 and len(row) == 10 for row in repeated.rows)
    assert repeated.words is not None
    assert [words(row[:1]) for row in repeated.rows] == list(repeated.words)
    assert all(len(set(row.tolist())) > 3 and len(row) == 10 for row in control.rows)
    turns = "{% for m in messages %}w1 {{ m.content }} {% endfor %}"
    template = turns + "{% if add_generation_prompt %}w2{% endif %}"
    model.tokenizer.chat_template = template
    try:
        chat, _ = prompts.repetitions(model, 0, 200)
        assert all(words(row[[0, -1]]) == "w1 w2" for row in chat.rows)
        assert all(np.bincount(row).max() >= prompts.TIMES for row in chat.rows)
        turns = json.dumps({"messages": [{"role": "user", "content": "w7 w8"}]})
        (tmp_path / "c.jsonl").write_text(turns + "\n")
        asked = prompts.from_file(model, tmp_path / "c.jsonl", prompts.Columns(), 50)
        assert words(asked.rows[0]) == "w1 w7 w8 w2"
    finally:
        model.tokenizer.chat_template = None
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "w1 w2", "response": "w3"}\n{"prompt": "w4 w5 w6", "response": "w3"}\n'
    )
    of_pairs = prompts.from_file(model, tmp_path / "p.jsonl", prompts.Columns(), 2)
    assert [words(row) for row in of_pairs.rows] == ["w1 w2", "w5 w6"]
    assert of_pairs.cut == 1


def side(lines: int, digests: list[int], known: list[int], pairs: list[tuple[int, int]]) -> SearchedFile:
    record, text = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)) if pairs else ([], [])
    flags = np.isin(np.arange(lines), known)
    out = FileMatches(
        record=np.array(record, dtype=np.int64), text=np.array(text, dtype=np.int64),
        verbatim=np.ones(len(pairs), dtype=np.bool_), characters=np.full(lines, 9), longest=np.full(lines, 3),
        stretches=np.array([(one, 0, 3, 1) for one, _ in pairs], dtype=np.int64).reshape(-1, 4),
    )  # fmt: skip
    return SearchedFile(
        line=np.arange(1, lines + 1),
        digest=np.array(digests, dtype=np.uint64),
        known=flags,
        begun=flags,
        short=0,
        came_out=(out,),
    )


def test_only_different_records_that_the_prompts_do_not_hold() -> None:
    shared = 2**64 - 1  # which numpy 2.0 cannot look up in a table
    files = [side(5, [1, 1, shared, 3, 4], [4], []), side(3, [7, shared, 8], [], [])]
    ours, theirs = usable(files)
    assert ours.tolist() == [True, False, False, True, False], "once, in one file only, not in the prompts"
    assert theirs.tolist() == [True, False, True]
    assert [each.tolist() for each in comparable(files)] == [[False, False, False, True, False], theirs.tolist()]
    apart = [files[0], side(2, [7, 8], [], [])]
    assert comparable(apart)[0].tolist() == usable(apart)[0].tolist() == [True, False, True, True, False]
    some = drawn(files[0], np.ones(5, dtype=np.bool_), 2, 3)
    assert some.sum() == 2
    more = drawn(files[0], np.ones(5, dtype=np.bool_), 4, 3)
    assert (more | ~some).all(), "fewer are among more"


def falsely_found(rule: Callable[[Sequence[SearchedFile]], list[np.ndarray]], sets: int = 200) -> int:
    """How often a test at 5 % accuses a model that saw neither file, and writes every fourth text that stands twice.

    Each of 3000 lines is a training record with a chance of 3/4; 600 texts stand twice.
    """
    found = 0
    for seed in range(sets):
        random = np.random.default_rng(seed)
        texts = np.concatenate([np.repeat(np.arange(600), 2), np.arange(600, 2400)])
        trained = random.permutation(len(texts)) < 2250
        files = [side(len(t), t.tolist(), [], []) for t in (texts[trained], texts[~trained])]
        chosen = rule(files)
        fewest = min(int(each.sum()) for each in chosen)
        counts = []
        for file, which in zip(files, chosen, strict=True):
            some = file.digest[drawn(file, which, fewest, 0)]
            counts.append(int(((some < 600) & (some % 4 == 0)).sum()))
        found += fisher(counts[0], fewest, counts[1], fewest) <= 0.05
    return found


def test_records_that_repeat_accuse_nobody() -> None:
    assert falsely_found(comparable) <= 18
    assert falsely_found(usable) > 60, "kept wherever all of their lines fell on one side"


def outcome(ours: int, theirs: int, texts: int = 40) -> PromptOutcome:
    """So many of 30 records of each side come out, each in a text of its own."""
    files = tuple(
        side(30, list(range(start, start + 30)), [], [(i, i) for i in range(found)])
        for start, found in ((0, ours), (100, theirs))
    )
    rows = tuple(np.array([3]) for _ in range(texts // 2))
    asked = PromptSet(method=FROM_FILE, rows=rows, line=np.arange(1, len(rows) + 1))
    written = WrittenTexts(prompts=asked, texts=[np.array([3])] * texts, begins=np.zeros(texts, dtype=np.int64))
    every = (np.ones(30, dtype=np.bool_),) * 2
    return PromptOutcome(written=written, files=files, number=0, counted=every, compared=every)


@pytest.mark.parametrize(("ours", "theirs", "detected"), [(12, 0, 1), (30, 15, 1), (12, 9, 0), (0, 0, 0)])
def test_only_what_beats_the_control_counts(ours: int, theirs: int, detected: float) -> None:
    items = {item.quantity: item for item in untargeted._of_one(outcome(ours, theirs), 0.995)}
    for name in (BEYOND, NEAR_BEYOND):
        assert items[name].details["detected"] == detected
        assert items[name].details["p_value"] == pytest.approx(fisher(ours, 30, theirs, 30))
    assert items[COST].details["giving"] == ours
    report = audit_report(*items.values())
    assert not [fault for fault in faults(report) if FROM_FILE in fault]


@pytest.mark.parametrize(
    ("quantity", "change", "complaint"),
    [
        (BEYOND, {"p_value": 0.5, "detected": 0.0}, "its counts give"),
        (BEYOND, {"detected": 0.0}, "is not its p-value's"),
        (BEYOND, {"held_out_texts": 60.0}, "such a search takes as many of each"),
        (NEAR_BEYOND, {"training_extracted": 11.0, "training_least": 11.0}, "its counts give"),
        ("rate on training text", {"extracted": 11.0}, "counts 11 of 30"),
        ("rate on training text", {"longest_tokens": 0.0}, "its longest stretch"),
        (COST, {"giving": 13.0}, "13 of 40 queries give"),
        (COST, {"giving": 0.0}, "its estimate says otherwise"),
        (COST, {"queries": 400.0}, "12 of 400 queries give"),
    ],
)
def test_a_changed_number_is_noticed(quantity: str, change: dict[str, float], complaint: str) -> None:
    items = untargeted._of_one(outcome(12, 0), 0.995)
    forged = [
        replace(item, details={**item.details, **change}) if item.quantity == quantity else item for item in items
    ]
    assert any(complaint in fault for fault in faults(audit_report(*forged)))


def test_an_interval_is_recomputed() -> None:
    item = untargeted._cost(outcome(12, 0), 0.995)
    assert extraction_tests.fault(item) == ""
    assert item.lower is not None
    assert item.upper is not None
    for forged in (replace(item, lower=1.1 * item.lower), replace(item, upper=0.9 * item.upper)):
        assert "its interval is not that of 12 of 40" in extraction_tests.fault(forged)


def test_nothing_that_was_asked_is_left_out() -> None:
    asked = {"asked": {"files": {"prompts": ["x"]}, "divergence": True}, "attack": [], "confidence": 0.95}
    items = untargeted._of_one(outcome(12, 0), 0.995)
    every = [replace(item, method=method) for method in (FROM_FILE, DIVERGENCE, CONTROL) for item in items]
    sides = {"repeating_texts": 12, "control_texts": 12}
    details = {**items[0].details, **sides}
    every.append(replace(items[0], method=DIVERGENCE, quantity=OVER_CONTROL, details=details))

    def complaints(evidence: list[Evidence]) -> list[str]:
        report = replace(audit_report(*evidence), parameters=asked)
        return [fault for fault in faults(report) if "states no" in fault]

    assert not complaints(every)
    for left in range(len(every)):
        assert complaints(every[:left] + every[left + 1 :])


def test_a_network_that_cannot_be_continued_says_so(
    folder: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(untargeted, "continuations", cannot)
    asked = untargeted.SpanSearch(
        span=SPAN, law=SamplingLaw(), greedy_only=False, records=None, seed=0, columns=prompts.Columns()
    )
    request = UntargetedRequest(divergence=True)
    sets = untargeted.prompts_of(model, request, SPAN, 0, prompts.Columns())
    found = untargeted.attack(model, request, sets, asked, [], workers=ALONE)
    assert {omission.what for omission in found.omissions} == {DIVERGENCE, CONTROL}
    assert not found.outcomes
