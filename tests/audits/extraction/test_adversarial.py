"""Optimized prefixes: what they open of text that was trained on, and that held-out text is searched as long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from audits.extraction import adversarial
from audits.extraction.adversarial import Adversary, OptimizedPrefixes, optimized_prefixes
from audits.extraction.greedy import GreedyMatches
from audits.extraction.opened import METHOD, BothSides, Searchable, of_prefixes
from audits.extraction.summary import BEYOND
from audits.findings import Findings
from audits.statistics.two_rates import fisher
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from privctl.models.language import LanguageModel, load_model
from tests.audits.extraction.test_part import judged, noise, words
from tests.audits.tiny import CONFIGS, save_tokenizer, write_jsonl
from tests.audits.turns import Turns
from tests.verify.audits.test_reach import report
from verify.audits.consistency import faults
from verify.audits.extraction import exact_tests as extraction_tests

PREFIX, SUFFIX = 6, 8


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, np.ndarray]:
    """A model that knows 16 texts of ``PREFIX`` + ``SUFFIX`` words by heart, and these."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    rows = np.random.default_rng(0).integers(3, 63, (16, PREFIX + SUFFIX))
    ids = torch.from_numpy(rows)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    with torch.enable_grad():
        for _ in range(150):
            optimizer.zero_grad()
            network(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    network.save_pretrained(folder)
    save_tokenizer(folder)
    return load_model(folder, device="cpu"), rows


def drawn(count: int, seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(3, 63, (count, PREFIX + SUFFIX)))


@pytest.mark.slow
def test_a_record_that_its_own_beginning_does_not_open(
    trained: tuple[LanguageModel, np.ndarray], tmp_path: Path
) -> None:
    """The data that are audited hold the trained ends after other beginnings; text never trained on stays closed."""
    model, rows = trained
    others = np.random.default_rng(1).integers(3, 63, (16, PREFIX))
    records = [words(np.concatenate([start, row[PREFIX:]])) for start, row in zip(others, rows, strict=True)]
    never = [words(row) for row in drawn(48, 2)]
    adversary = Adversary(texts=16, budget=800, tokens=3)

    def audited(train: list[str], held: list[str]) -> Findings:
        paths = [write_jsonl(tmp_path / f"{name}.jsonl", texts) for name, texts in (("train", train), ("held", held))]
        return judged(model, *paths, prefix_tokens=PREFIX, suffix_tokens=SUFFIX, adversary=adversary)

    found = audited(records, never[:16])
    beyond = by_name(found)["beyond held-out"]
    assert beyond.details["training_extracted"] >= 8
    assert beyond.details["held_out_extracted"] == 0
    assert found.verdicts[0].outcome is Outcome.REFUTED
    assert "after optimized prefixes" in found.verdicts[0].reason
    others_found = [item for item in found.evidence if item.method == "extraction"]
    assert all(not (item.quantity.startswith("rate beyond") and (item.lower or 0) > 0) for item in others_found)
    assert not any(item.details.get("detected") for item in others_found), "decoding and sampling find nothing"
    null = audited(never[16:32], never[32:])
    assert by_name(null)["beyond held-out"].details["detected"] == 0
    assert null.verdicts[0].outcome is Outcome.INCONCLUSIVE


def by_name(found: Findings) -> dict[str, Evidence]:
    return {
        item.quantity.removeprefix("rate ").removesuffix(" text"): item
        for item in found.evidence
        if item.method == METHOD
    }


def test_the_first_order_is_that_of_the_loss(model: LanguageModel) -> None:
    """Of all tokens in one place, those promised least loss lie far below the average one in true loss."""
    row, allowed = drawn(1, 3)[0], np.arange(3, 63)
    embedding = model.network.get_input_embeddings()
    weight = embedding.weight
    search = adversarial._PrefixSearch(
        model=model, embedding=embedding, allowed=allowed, start=0, length=PREFIX, suffix=SUFFIX, budget=1, seed=0
    )
    before = weight.detach().clone()
    weight.lerp_(weight.mean(dim=0), 0.98)  # so near to each other that the first order is nearly all there is
    try:
        likeliest = search.likeliest(row)
        for place in (0, PREFIX - 1):
            tried = np.tile(row, (len(allowed), 1))
            tried[:, place] = allowed
            loss, _, _ = adversarial._measured(model, tried, SUFFIX)
            by_loss = allowed[np.argsort(loss)]
            assert len(set(likeliest[place, :10].tolist()) & set(by_loss[:10].tolist())) >= 7
    finally:
        weight.copy_(before)


def test_no_more_passes_than_stated(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where the network is asked, and the same by one process and by three in turn."""
    asked = {"rows": 0, "gradients": 0}
    measured, likeliest = adversarial._measured, adversarial._PrefixSearch.likeliest

    def counted_rows(model: LanguageModel, rows: Any, suffix: int) -> Any:
        asked["rows"] += len(rows)
        return measured(model, rows, suffix)

    def counted_gradients(*values: Any) -> Any:
        asked["gradients"] += 1
        return likeliest(*values)

    monkeypatch.setattr(adversarial, "_measured", counted_rows)
    monkeypatch.setattr(adversarial._PrefixSearch, "likeliest", counted_gradients)
    rows, steps = drawn(3, 4), []
    adversary = Adversary(texts=3, budget=100, tokens=3)
    found = optimized_prefixes(model, rows, SUFFIX, adversary, bos=False, seed=1, advance=steps.append)
    assert found is not None
    assert all(90 < spent <= 100 for spent in found.spent.tolist())
    assert asked["rows"] + 3 * (asked["gradients"] - 1) == found.spent.sum(), "one gradient is tried beforehand"
    assert sum(steps) == 300
    shared = optimized_prefixes(model, rows, SUFFIX, adversary, bos=False, seed=1, workers=Turns())
    assert shared is not None
    assert shared.matches.matched.tolist() == found.matches.matched.tolist()
    assert shared.spent.tolist() == found.spent.tolist()


def both(ours: int, theirs: int, undecided: int = 0, texts: int = 20) -> BothSides:
    def side(count: int) -> OptimizedPrefixes:
        extracted = np.arange(texts) < count
        flags = np.arange(texts) < undecided
        matches = GreedyMatches(matched=8 * extracted, extracted=extracted, undecided=flags, rerun=0)
        return OptimizedPrefixes(matches=matches, spent=np.full(texts, 600))

    asked = Adversary(texts=texts, budget=600)
    neither = (Searchable.of(()), Searchable.of(()))
    return BothSides(sides=neither, train=side(ours), heldout=side(theirs), adversary=asked, tokens=2)


@pytest.mark.parametrize(("ours", "theirs", "detected"), [(9, 0, 1), (20, 11, 1), (9, 5, 0), (20, 20, 0), (0, 0, 0)])
def test_only_what_beats_the_control_counts(ours: int, theirs: int, detected: float) -> None:
    beyond, *rates = of_prefixes(both(ours, theirs), 0.995)
    assert beyond.quantity == BEYOND
    assert beyond.details["detected"] == detected
    assert beyond.details["p_value"] == pytest.approx(fisher(ours, 20, theirs, 20))
    assert [rate.details["extracted"] for rate in rates] == [ours, theirs]
    assert all(extraction_tests.fault(item) == "" for item in (beyond, *rates))


def test_undecided_texts_count_against_a_difference() -> None:
    beyond, *_ = of_prefixes(both(9, 0, undecided=4), 0.995)
    assert beyond.details["p_value"] == pytest.approx(fisher(5, 20, 4, 20))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"p_value": 0.5, "detected": 0.0}, "its counts give"),
        ({"held_out_most": 3.0}, "its counts give"),
        ({"training_extracted": 30.0}, "contradict"),
        ({"detected": 0.0}, "is not its p-value's"),
    ],
)
def test_a_changed_number_is_noticed(change: dict[str, float], complaint: str) -> None:
    items = of_prefixes(both(9, 0), 0.995)
    forged = replace(items[0], details={**items[0].details, **change})
    assert complaint in extraction_tests.fault(forged)
    assert any(complaint in fault for fault in faults(report(forged)))
    missing = replace(items[0], details={"p_value": 1.0, "level": 0.005})
    assert "is missing" in extraction_tests.fault(missing)
    rate = replace(items[1], estimate=0.0, lower=0.0)
    assert any("it counts 9 of 20" in fault for fault in faults(report(rate)))


def test_a_search_that_was_asked_for_is_not_left_out() -> None:
    asked = {"asked": {"adversarial": True}, "attack": [], "confidence": 0.95}
    items = of_prefixes(both(0, 0), 0.995)
    whole = replace(report(*items), parameters=asked)
    assert not any("adversarial prefix: it states no" in fault for fault in faults(whole))
    for left in range(3):
        some = replace(whole, evidence=items[:left] + items[left + 1 :])
        assert any("adversarial prefix: it states no" in fault for fault in faults(some))
    omitted = replace(whole, evidence=(), omissions=(Omission(what=METHOD, reason="no gradient"),))
    assert not any("adversarial prefix: it states no" in fault for fault in faults(omitted))


@pytest.mark.parametrize(
    ("adversary", "complaint"),
    [
        (Adversary(texts=4, tokens=8), "can spell it out"),
        (Adversary(texts=4, budget=3), "--adversarial-budget is 3"),
        (Adversary(texts=4, tokens=7), "more than --prefix-tokens 6"),
    ],
)
def test_searches_of_no_use_are_refused(
    adversary: Adversary, complaint: str, model: LanguageModel, tmp_path: Path
) -> None:
    train, held = (write_jsonl(tmp_path / f"{seed}.jsonl", noise(3, seed)) for seed in (1, 2))
    with pytest.raises(CommandError, match=complaint):
        judged(model, train, held, prefix_tokens=PREFIX, suffix_tokens=SUFFIX, adversary=adversary)
    with pytest.raises(CommandError, match="needs --held-out"):
        judged(model, train, adversary=Adversary(texts=2, tokens=2))


def test_a_network_without_a_gradient_says_so(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph")

    monkeypatch.setattr(adversarial._PrefixSearch, "likeliest", fails)
    train, held = (write_jsonl(tmp_path / f"{seed}.jsonl", noise(3, seed)) for seed in (1, 2))
    found = judged(model, train, held, adversary=Adversary(texts=2, tokens=2))
    assert METHOD in {omission.what for omission in found.omissions}
    assert not by_name(found)
