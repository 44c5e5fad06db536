from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from audits.canaries.completion import Completion
from audits.secrets.audit import SecretRequest
from audits.secrets.evidence import INDEPENDENT
from audits.secrets.targets import choose
from audits.secrets.verdict import TRACELESS
from privctl.accounting.secrets.fano import posterior
from privctl.domain.errors import CommandError, InputError
from privctl.domain.verdict import Outcome, Verdict
from privctl.secrets.protection import read_protection
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import WORDS, new_model, train
from tests.audits.secrets.small import book, judged, of, pins, prefixes, protect, records
from tests.audits.turns import Turns

SEEN, HELD = 40, 20
PINS = pins(SEEN + HELD, 2)
ROWS = [(value, [i]) for i, value in enumerate(PINS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learnt the first records by heart, the one before, a book of all records, and a plan that holds."""
    folder = tmp_path_factory.mktemp("secrets")
    texts = [f"{a} {b}" for a, b in zip(prefixes(SEEN + HELD, 1), PINS, strict=True)]
    other = [f"{a} {b}" for a, b in zip(prefixes(60, 5), pins(60, 6), strict=True)]
    data = records(folder, "data.jsonl", texts)
    train(new_model(folder / "before"), records(folder, "other.jsonl", other), epochs=5)
    shutil.copytree(folder / "before", folder / "after")
    train(folder / "after", records(folder, "seen.jsonl", texts[:SEEN]), epochs=70)
    book(folder / "book.jsonl", ROWS)
    drawn = [0.1] * SEEN + [0.0] * HELD
    protect(folder / "plan.safetensors", data, [r for _, r in ROWS], drawn, information=1e-3)
    return folder


def request(folder: Path, **more: object) -> SecretRequest:
    return SecretRequest(**{"secrets": folder / "book.jsonl", "data": folder / "data.jsonl", "candidates": 40, **more})


def traced(verdicts: tuple[Verdict, ...]) -> Verdict:
    (found,) = [verdict for verdict in verdicts if verdict.subject == TRACELESS]
    return found


def test_what_was_learnt_by_heart_is_caught_and_the_control_is_not(folder: Path) -> None:
    found = judged(folder / "after", request(folder, plan=folder / "plan.safetensors"), folder / "before")
    after, control = of(found, "told first, trained"), of(found, "told first, never drawn (control)")
    assert after.estimate == after.upper == 1
    assert after.lower is not None
    assert after.lower > 0.75
    assert after.interval == INDEPENDENT
    assert after.details["chance"] == pytest.approx(1 / 40)
    assert control.estimate is not None
    assert control.estimate < 0.1
    before = of(found, "told first, trained, before training")
    assert before.upper is not None
    assert before.upper < 0.4
    written = of(found, "written greedily, trained").details
    assert written["disclosed"] + written["undecided"] > 0.8 * SEEN
    assert of(found, "written greedily, trained, before training").details["disclosed"] == 0
    assert of(found, "found in 100 queries with probability 0.5, trained").estimate == 1
    kind = of(found, "told first, kind pin").details
    assert (kind["told"], kind["median_rank"], kind["control"], kind["skipped"]) == (SEEN, 1, HELD, 0)
    assert traced(found.verdicts).outcome is Outcome.REFUTED
    assert "those never drawn" in traced(found.verdicts).reason
    (protection,) = [verdict for verdict in found.verdicts if verdict.subject != TRACELESS]
    assert protection.outcome is Outcome.INCONCLUSIVE, "nobody drew these values at random"
    assert "nobody drew these" in protection.reason
    assert found.arrays["secret.rank"].tolist()[:SEEN] == [1] * SEEN
    assert found.arrays["secret.control"].tolist() == [False] * SEEN + [True] * HELD
    assert found.arrays["secret.bound"] == pytest.approx(posterior(1e-3, 1 / 40), rel=1e-9)
    spent = sum(1 - item.confidence for item in found.evidence)
    assert spent == pytest.approx(0.05 * (0.25 + 0.25)), "intervals and tests share what the bound leaves"


@pytest.mark.slow
def test_with_the_base_model_alone(folder: Path) -> None:
    workers = Turns()
    shared = judged(folder / "after", request(folder), folder / "before", workers=workers)
    found = judged(folder / "after", request(folder), folder / "before")
    for name, values in found.arrays.items():  # however many processes share the work
        np.testing.assert_allclose(shared.arrays[name], values, rtol=1e-6)
    assert min(workers.shares[0]) > 10
    verdict = traced(found.verdicts)
    assert verdict.outcome is Outcome.REFUTED
    assert "only secrets never trained on could tell" in verdict.reason


def test_without_a_control_nothing_is_concluded(folder: Path) -> None:
    found = judged(folder / "after", request(folder))
    assert traced(found.verdicts).outcome is Outcome.INCONCLUSIVE
    assert "confounded: there is no control" in traced(found.verdicts).reason


def test_an_untouched_model_is_not_caught(folder: Path) -> None:
    found = judged(folder / "before", request(folder, plan=folder / "plan.safetensors"))
    trained_rate = of(found, "told first, trained")
    assert trained_rate.lower is not None
    assert trained_rate.lower <= 1 / 40
    assert {verdict.outcome for verdict in found.verdicts} == {Outcome.INCONCLUSIVE}


@pytest.mark.slow
def test_guessable_values_are_no_leak(folder: Path, tmp_path: Path) -> None:
    """Planted: the word before each value gives it away, in every text there is. No model here saw a secret."""
    keys = dict(zip(WORDS[:12], pins(12, 9), strict=True))
    fronts = [f"{a} {word}" for a, word in zip(prefixes(250, 11), 24 * list(keys), strict=False)]
    texts = [f"{front} {keys[front.split()[-1]]}" for front in fronts]
    common, further, secret = texts[:120], texts[120:200], texts[200:]
    train(new_model(tmp_path / "before"), records(tmp_path, "a.jsonl", common), epochs=20)
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    train(tmp_path / "after", records(tmp_path, "b.jsonl", further), epochs=5, rate=1e-3)
    data = records(tmp_path, "data.jsonl", secret)
    rows = [(text.split()[-1], [i]) for i, text in enumerate(secret)]
    plan = protect(tmp_path / "plan.safetensors", data, [r for _, r in rows], [0.1] * 30 + [0.0] * 20, information=1e-3)
    asked = {"secrets": book(tmp_path / "book.jsonl", rows), "data": data, "candidates": 40}
    for more, base in (({"plan": plan}, tmp_path / "before"), ({}, tmp_path / "before"), ({}, None)):
        found = judged(tmp_path / "after", SecretRequest(**asked, **more), base)
        trained_rate = of(found, "told first, trained").estimate
        assert trained_rate is not None
        assert trained_rate > 0.5, "or the test plants nothing"
        assert Outcome.REFUTED not in {verdict.outcome for verdict in found.verdicts}


@pytest.mark.slow
def test_copies_are_asked_of_once_and_records_are_asked_together(folder: Path, tmp_path: Path) -> None:
    """A secret in ten records with four contexts; and the same value under two names."""
    fronts = prefixes(4, 21)
    texts = [f"{fronts[i % 4]} 1234" for i in range(10)] + [f"{a} 9876" for a in prefixes(2, 22)]
    data = records(tmp_path, "data.jsonl", texts)
    shutil.copytree(folder / "before", tmp_path / "model")
    train(tmp_path / "model", data, epochs=60)
    rows = [("1234", range(10)), ("9876", [10]), ("9876", [11])]
    found = judged(tmp_path / "model", SecretRequest(secrets=book(tmp_path / "b.jsonl", rows), data=data))
    assert found.arrays["secret.rank"].tolist() == [1, 1, 1]
    assert found.arrays["secret.completion"].tolist() == [Completion.DISCLOSED] * 3


def test_what_is_left_out_and_why(folder: Path, tmp_path: Path) -> None:
    texts = ["1234 wal", "wal 1234", "wal zzz", "wal 77 wak", f"{'wal ' * 80}5555", "wal wak"]
    data = records(tmp_path, "data.jsonl", texts)
    path = book(tmp_path / "book.jsonl", [
        ("1234", [0]), ("4321", [1]), ("77", [3]), ("5555", [4]), ("66", []), ("1234", [0, 1]),
        ("wak", [3, 5]),
    ])  # fmt: skip
    with path.open("a") as file:
        file.write('{"id": "odd", "kind": "word", "value": "zzz", "candidates": ["yyy", "xxx"], "records": [2]}\n')
        file.write('{"id": "person", "kind": "author", "records": [1]}\n')
    found = judged(folder / "before", SecretRequest(secrets=path, data=data))
    assert {(omission.what, omission.reason) for omission in found.omissions} == {
        ("1 secret of kind author", "without a value in the book, so that there is nothing to tell"),
        ("1 secret of kind pin", "at the very beginning of its records, with nothing before it to ask with"),
        ("1 secret of kind pin", "in no record"),
        ("1 secret of kind pin", "whose value does not occur in its records"),
        ("1 secret of kind word", "which the tokenizer does not tell from any other value"),
    }
    # "77" has other numbers of two digits, "5555" the end of a context that is too long, "1234" its second record
    assert found.arrays["secret.position"].tolist() == [2, 3, 5, 6]
    (author,) = [item for item in found.evidence if item.quantity.endswith("kind author")]
    assert (author.estimate, author.details["skipped"]) == (None, 1)


def test_candidates_of_the_book_s_own(folder: Path, tmp_path: Path) -> None:
    """They need not have as many tokens as the value; here the model's choice among three is known."""
    front = prefixes(1, 1)[0]
    data = records(tmp_path, "data.jsonl", [f"{front} {PINS[0]}", f"{front} 12"])
    assert PINS[0].startswith("99")
    path = book(tmp_path / "book.jsonl", [(PINS[0], [0]), ("12", [1])], candidates=["123456", "99", "345", PINS[0]])
    found = judged(folder / "after", request(folder, secrets=path, data=data))
    assert found.arrays["secret.candidates"].tolist() == [3, 4], "99 begins the one, 123456 begins with the other"
    assert found.arrays["secret.rank"][0] == 1
    assert found.arrays["secret.rank"][1] > 1


def test_faults_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    far = book(tmp_path / "far.jsonl", [("1234", [60])])
    with pytest.raises(InputError, match=r"the secret 'pin-0' in record 60, but .* holds 60 records, 0 to 59"):
        judged(folder / "before", request(folder, secrets=far))
    none = book(tmp_path / "none.jsonl", [("none", [0])])
    with pytest.raises(InputError, match=r"has no secret that could be attacked: 1 whose value does not occur"):
        judged(folder / "before", request(folder, secrets=none))
    plan = folder / "plan.safetensors"
    with pytest.raises(InputError, match=r"plans for other data \(data.jsonl\) than --data .*other.jsonl"):
        judged(folder / "before", request(folder, data=folder / "other.jsonl", plan=plan))
    other = book(tmp_path / "other.jsonl", [(PINS[0], [1])])
    with pytest.raises(InputError, match=r"'pin-0', which the plan does not hold with the same records"):
        judged(folder / "before", request(folder, secrets=other, plan=plan))
    new_model(tmp_path / "words", extra=["pinpin"])
    far_data = records(tmp_path, "words.jsonl", ["wal wak 1234", "wal wam 77"])
    named = book(tmp_path / "named.jsonl", [("1234", [0])])
    vocabulary = (tmp_path / "words" / "tokenizer.json").read_text()
    (tmp_path / "words" / "tokenizer.json").write_text(vocabulary.replace('"wak"', '"wxx"'))
    with pytest.raises(CommandError, match="has another tokenizer than"):
        judged(folder / "before", request(folder, secrets=named, data=far_data), tmp_path / "words")
    for settings in ({"candidates": 1}, {"most": 0}):
        with pytest.raises(CommandError):
            request(folder, **settings)


def test_only_the_plan_that_the_model_was_trained_by(folder: Path) -> None:
    """Who was never drawn, and what is allowed, would else be another training's."""
    plan = folder / "plan.safetensors"
    held = judged(folder / "before", request(folder, plan=plan, planned_by=(file_digest(plan),)))
    assert held.evidence
    for named, message in (("blake3:00",), "another plan; give that one"), ((), "no plan; leave --plan out"):
        with pytest.raises(InputError, match=message):
            judged(folder / "before", request(folder, plan=plan, planned_by=named))


def test_few_of_many_are_drawn_from_each_side(folder: Path) -> None:
    asked = request(folder, plan=folder / "plan.safetensors", most=12, candidates=20)
    found = judged(folder / "before", asked)
    control = found.arrays["secret.control"]
    assert (int((~control).sum()), int(control.sum())) == (12, 12)
    again = judged(folder / "before", asked)
    np.testing.assert_array_equal(found.arrays["secret.position"], again.arrays["secret.position"])
    np.testing.assert_array_equal(found.arrays["secret.rank"], again.arrays["secret.rank"])
    assert any("24 of 60 with a value and records were attacked" in line for line in found.warnings)


def test_a_control_that_was_trained_on_after_all_is_none(folder: Path, tmp_path: Path) -> None:
    """Planted: the value of a secret that the plan never draws stands in a record that it does."""
    texts = [f"{a} {b}" for a, b in zip(prefixes(4, 1), ("1111", "2222", "3333", "2222 4444"), strict=True)]
    data = records(tmp_path, "data.jsonl", texts)
    rows = [("1111", [0]), ("2222", [1]), ("3333", [2]), ("4444", [3])]
    plan = protect(tmp_path / "plan.safetensors", data, [r for _, r in rows], [0.0, 0.0, 0.5, 0.5], information=1e-3)
    asked = SecretRequest(secrets=book(tmp_path / "book.jsonl", rows), data=data, plan=plan)
    found = judged(folder / "before", asked)
    assert [omission.reason for omission in found.omissions] == [
        "never drawn, but its value stands in a record that is"
    ]
    assert found.arrays["secret.position"].tolist() == [2, 3, 0]


def test_records_that_were_drawn_are_asked_of_and_of_a_control_all(tmp_path: Path) -> None:
    texts = [f"{front} {value}" for value in ("1111", "2222") for front in prefixes(3, 1)]
    data = records(tmp_path, "data.jsonl", texts)
    rows = [("1111", [0, 1, 2]), ("2222", [3, 4, 5])]
    drawn = [0.1, 0.0, 0.5, 0.0, 0.0, 0.0]
    plan = read_protection(protect(tmp_path / "p.safetensors", data, [r for _, r in rows], drawn, information=0.1))
    found = choose(book(tmp_path / "book.jsonl", rows), data, plan, None, most=9, seed=0)
    trained, control = found.targets
    assert [p.text for p in trained.passages] == [texts[2], texts[0]]
    assert [p.text for p in control.passages] == texts[3:]
    assert control.control
