"""Secrets that a beam search writes: canaries, whose other draws are the control, and values never drawn."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from audits.canaries.manifest import read_manifest
from audits.findings import Findings
from audits.secrets import evidence
from audits.secrets.audit import SecretRequest
from audits.secrets.beam import beam, tail
from audits.secrets.trace import DESIGNED, TraceTest
from audits.secrets.verdict import trace
from privctl.data.records import read_records
from privctl.domain.errors import CommandError
from privctl.domain.verdict import Outcome
from privctl.models.language import load_model
from tests.audits.canaries.small import new_model, planted, texts, train
from tests.audits.secrets.small import book, judged, of
from tests.audits.tiny import write_jsonl
from tests.verify.audits.test_reach import report
from verify.audits.consistency import faults

WIDTH = 20


def test_a_wide_beam_is_an_exhaustive_search(llama: Path) -> None:
    """Of all pairs of tokens the likeliest, as whole rows score them; a narrow beam finds some of them."""
    model, before = load_model(llama, device="cpu"), np.array([5, 9, 17])
    size = model.vocabulary
    pairs = np.array(list(itertools.product(range(size), repeat=2)))
    with torch.inference_mode():
        rows = torch.from_numpy(np.concatenate([np.tile(before, (size, 1)), np.arange(size)[:, None]], axis=1))
        logs = model.network(input_ids=rows).logits[:, 2:].log_softmax(dim=2)
    total = logs[pairs[:, 0], 0, pairs[:, 0]] + logs[pairs[:, 0], 1, pairs[:, 1]]
    best = pairs[total.argsort(descending=True).numpy()]
    found = beam(model, before, 2, size)
    assert found is not None
    assert found.tolist() == best[:size].tolist()
    narrow = beam(model, before, 2, 1)
    assert narrow is not None
    assert narrow.shape == (1, 2)
    assert narrow[0, 0] == logs[0, 0].argmax()


def test_a_beam_goes_on_from_what_it_keeps(llama: Path) -> None:
    """Four tokens, each beam fed as a whole row, without what was kept."""
    model, before, width = load_model(llama, device="cpu"), np.array([5, 9, 17]), 5
    expected: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(4):
        grown = []
        for total, ids in expected:
            row = torch.tensor([[*before.tolist(), *ids]])
            with torch.inference_mode():
                logs = model.network(input_ids=row).logits[0, -1].log_softmax(dim=0).tolist()
            grown += [(total + log, [*ids, token]) for token, log in enumerate(logs)]
        expected = sorted(grown, reverse=True)[:width]
    found = beam(model, before, 4, width)
    assert found is not None
    assert found.tolist() == [ids for _, ids in expected]


def test_the_tail_is_that_of_independent_events() -> None:
    """Against all 2^4 outcomes."""
    chances = [0.5, 0.1, 0.25, 0.9]
    law = np.zeros(5)
    for events in itertools.product((0, 1), repeat=4):
        law[sum(events)] += np.prod([c if e else 1 - c for e, c in zip(events, chances, strict=True)])
    assert [tail(k, chances) for k in range(5)] == pytest.approx([law[k:].sum() for k in range(5)])
    assert tail(0, []) == 1


@pytest.mark.parametrize("change", [{"detected": 0.0}, {"p_value": 0.5}])
def test_a_changed_trace_is_noticed(change: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.audits.asked.faults", lambda *_: ())  # the report made here answers one question alone
    test = TraceTest(name=DESIGNED, score="a beam of 20", compared=(30, 0), excess=0.4, p_value=1e-9, of_shares=True)
    (item,) = evidence.tests_as_evidence([test], 0.0125)
    assert item.quantity == f"share found beyond, {DESIGNED}, by a beam of 20"
    verdict = trace([item])
    assert verdict.outcome is Outcome.REFUTED
    assert "a beam search holds 40 percentage points more of them than of other draws" in verdict.reason
    assert list(faults(replace(report(item), verdicts=(verdict,)))) == []
    forged = replace(item, details={**item.details, **change})
    assert any("not what its p-value says" in fault for fault in faults(report(forged)))
    calm = replace(verdict, outcome=Outcome.CONSISTENT)
    assert any("evidence refutes that" in fault for fault in faults(replace(report(item), verdicts=(calm,))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Canaries among the data, a model that learnt them, and one that never saw them."""
    folder = tmp_path_factory.mktemp("beam")
    write_jsonl(folder / "data.jsonl", texts(80, 1))
    planted(folder, count=60, prefix_from=folder / "data.jsonl", templates=("pin {digits:5}",), copies=(2,))
    train(new_model(folder / "never"), folder / "data.jsonl", epochs=4)
    train(new_model(folder / "knows"), folder / "planted.jsonl", epochs=30)
    found = [record.text for record in read_records(folder / "planted.jsonl")]
    canaries = [canary for canary in read_manifest(folder / "m.json").canaries if canary.included]
    book(folder / "book.jsonl", [(c.secret, [i for i, text in enumerate(found) if c.secret in text]) for c in canaries])
    return folder


def asked(folder: Path, width: int | None = WIDTH) -> SecretRequest:
    return SecretRequest(
        secrets=folder / "book.jsonl",
        data=folder / "planted.jsonl",
        manifest=folder / "m.json",
        candidates=60,
        beam=width,
    )


def trace_of(found: Findings) -> dict[str, float]:
    item = of(found, f"share found beyond, {DESIGNED}, by a beam of {WIDTH}")
    return {**item.details, "estimate": item.estimate or 0.0}


@pytest.mark.slow
def test_canaries_that_are_known_are_among_the_guesses(folder: Path) -> None:
    found = judged(folder / "knows", asked(folder))
    rate = of(found, f"in a beam of {WIDTH}, trained")
    greedy = of(found, "written greedily, trained")
    assert rate.details["found"] > 0.9 * rate.samples["secrets"]
    assert rate.details["found"] >= greedy.details["disclosed"]
    assert rate.details["chance"] < 0.1
    assert trace_of(found)["detected"] == 1
    alone = of(judged(folder / "knows", asked(folder, None)), f"mean bits beyond, {DESIGNED}, by loss")
    assert trace_of(found)["level"] == pytest.approx(alone.details["level"] / 2), "one test more shares the error"


@pytest.mark.slow
def test_canaries_never_seen_are_not(folder: Path) -> None:
    found = judged(folder / "never", asked(folder))
    assert trace_of(found)["detected"] == 0
    assert trace_of(found)["p_value"] > 0.01


def test_where_chance_alone_decides_the_test_keeps_its_level() -> None:
    source = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        chances = source.beta(0.5, 2, 30)
        wrong += tail(int((source.random(30) < chances).sum()), chances.tolist()) <= 0.05
    assert wrong <= 26, "15 are expected at most, and more than 26 have a chance of 0.3 %"


@pytest.mark.parametrize("width", [0, 1001])
def test_a_beam_that_cannot_be_is_refused(width: int) -> None:
    with pytest.raises(CommandError, match=f"--beam is {width}"):
        SecretRequest(secrets=Path("book.jsonl"), data=Path("data.jsonl"), beam=width)
