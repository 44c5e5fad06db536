"""A reference model: what it gives too accuses nobody, whichever file it is from; what training alone taught does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audits.extraction.elsewhere import KnownElsewhere, ReferenceModel, _rest, known_elsewhere
from audits.extraction.prompts import FROM_FILE
from audits.extraction.summary import BEYOND, METHOD, NEAR_BEYOND
from audits.extraction.verdict import verdict
from audits.extraction.windows import TextShape
from audits.statistics.two_rates import fisher
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.models.language import load_model
from privctl.reports.files import POINTER, read_report
from privctl.storage.digest import file_digest
from tests.audits.extraction.public_text import PREFIX, SPAN, learn, others, unlike
from tests.audits.extraction.test_part import words
from tests.audits.tiny import SIZE, WORDS, save_tokenizer, write_jsonl
from tests.bench.extraction_null import ALONE, AND_RECORDS, with_reference
from tests.gate.made import making
from verify.audits.consistency import faults
from verify.audits.extraction import known_elsewhere as checks

#: Records of each file, and those learned.
SIDE, LEARNED = 40, 16
TOLD = ["--prefix-tokens", str(PREFIX), "--suffix-tokens", str(SPAN), "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that knows public text, what other text and what a file's own records made of it, and two files."""
    folder = tmp_path_factory.mktemp("elsewhere")
    public, own, rest = unlike(LEARNED), others(LEARNED, 2), others(SIDE, 3)
    base = learn(folder / "base", public, steps=80)
    learn(folder / "public", np.concatenate([public, others(LEARNED, 5)]), steps=50, begin=base)
    learn(folder / "own", np.concatenate([public, own]), steps=80, begin=base)
    write_jsonl(folder / "public.jsonl", [*map(words, public), *map(words, rest[LEARNED:])])
    write_jsonl(folder / "own.jsonl", [*map(words, public), *map(words, own), *map(words, rest[: SIDE - 2 * LEARNED])])
    write_jsonl(folder / "held.jsonl", [*map(words, others(SIDE, 4))])
    (folder / "prompts.txt").write_text("".join(f"{words(row[:3])}\n" for row in public))
    return folder


def called(workspace: Path, name: str, *more: str, reference: str = "base") -> list[str]:
    files = ["--train", str(workspace / f"{name}.jsonl"), "--held-out", str(workspace / "held.jsonl")]
    return [
        "audit",
        "extraction",
        str(workspace / name),
        *files,
        "--reference",
        str(workspace / reference),
        *TOLD,
        *more,
    ]


def audited(workspace: Path, name: str, *more: str, reference: str = "base") -> PrivacyReport:
    output = workspace / f"{name}-{reference}{len(more)}.audit.report.json"
    assert run([*called(workspace, name, *more, reference=reference), "-f", "-o", str(output)]) == 0
    return read_report(output)


def prompted(workspace: Path) -> list[str]:
    return ["--prompts", str(workspace / "prompts.txt"), "--continuations", "2", "--sampling-seed", "3"]


@pytest.fixture(scope="module")
def public(workspace: Path) -> PrivacyReport:
    return audited(workspace, "public", *prompted(workspace))


def compared(report: PrivacyReport) -> dict[tuple[str, str], Mapping[str, float]]:
    return {(i.method, i.quantity): i.details for i in report.evidence if i.quantity in (BEYOND, NEAR_BEYOND)}


def test_text_learned_elsewhere_accuses_nobody(public: PrivacyReport) -> None:
    found = compared(public)
    assert found.keys() == {(method, name) for method in (METHOD, FROM_FILE) for name in (BEYOND, NEAR_BEYOND)}
    for details in found.values():
        assert (details["known_training"], details["known_held_out"]) == (LEARNED, 0)
        assert (details["training_texts"], details["training_extracted"]) == (SIDE - LEARNED, 0)
    (decided,) = public.verdicts
    assert decided.outcome is Outcome.INCONCLUSIVE
    assert f"{LEARNED} training and 0 held-out texts that the reference model gives too" in decided.reason
    assert "if it was trained on that too" in decided.reason
    rate = next(item for item in public.evidence if item.quantity == "rate on training text")
    assert rate.details["extracted"] == LEARNED, "extracted texts are still counted"
    assert any("no report says that the training began with base" in line for line in public.warnings)


def test_without_a_reference_it_would(workspace: Path) -> None:
    call = called(workspace, "public", "-f", "-o", str(workspace / "alone.audit.report.json"))
    del call[call.index("--reference") : call.index("--reference") + 2]
    assert run(call) == 0
    report = read_report(workspace / "alone.audit.report.json")
    assert report.verdicts[0].outcome is Outcome.REFUTED
    assert any("(--reference MODEL leaves it out)" in line for line in report.warnings)


def test_what_training_taught_is_found(workspace: Path) -> None:
    report = audited(workspace, "own", "--leaks", str(workspace / "leaks.jsonl"))
    (decided,) = report.verdicts
    assert decided.outcome is Outcome.REFUTED
    assert f"{LEARNED} of {SIDE - LEARNED} other training texts come out" in decided.reason
    leaks = [json.loads(line) for line in (workspace / "leaks.jsonl").read_text().splitlines()]
    assert [leak["line"] for leak in leaks if leak.get("known_elsewhere")] == [*range(1, LEARNED + 1)]
    assert {leak["line"] for leak in leaks[:LEARNED]} == {*range(LEARNED + 1, 2 * LEARNED + 1)}, "the others leak most"


def renumbered(workspace: Path, name: str) -> Path:
    """The base with other numbers for its tokens, so that it reads and writes the same text."""
    folder = workspace / name
    shutil.copytree(workspace / "base", folder)
    order = np.random.default_rng(0).permutation(len(WORDS))
    tensors = load_file(folder / "model.safetensors")
    rows = np.concatenate([np.arange(3), 3 + order])
    for key, tensor in tensors.items():
        if tensor.shape[0] == SIZE:
            tensors[key] = np.ascontiguousarray(tensor[rows])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(folder, words=[WORDS[i] for i in order])
    return folder


def test_a_reference_with_other_tokens_is_asked_for_the_text(workspace: Path, public: PrivacyReport) -> None:
    renumbered(workspace, "other")
    report = audited(workspace, "public", *prompted(workspace), reference="other")
    for key in [(METHOD, BEYOND), (FROM_FILE, BEYOND)]:
        assert compared(report)[key]["known_training"] == LEARNED
    assert report.parameters["extraction"]["reference_tokens"] == "its own, of the texts"
    assert public.parameters["extraction"]["reference_tokens"] == "the same"


@pytest.fixture(scope="module")
def asking(workspace: Path) -> KnownElsewhere:
    audited, base = (load_model(workspace / name, device="cpu") for name in ("public", "base"))
    shape = TextShape(prefix=PREFIX, suffix=SPAN, least_prefix=PREFIX, bos=False)
    return known_elsewhere(ReferenceModel(model=base), audited, shape, [*unlike(LEARNED)], None)


def test_near_text_and_stretches_are_given_too(asking: KnownElsewhere) -> None:
    known = unlike(LEARNED)[:, : PREFIX + SPAN]
    near, far = known.copy(), known.copy()
    near[:, -1] = 3 + (near[:, -1] - 2) % len(WORDS)
    far[:, PREFIX:] = np.random.default_rng(1).integers(3, SIZE, (LEARNED, SPAN))
    assert asking.gives([*known]).all()
    assert asking.gives([*near]).all()
    assert not asking.gives([*far]).any()
    assert asking.gives([]).tolist() == []
    row = unlike(1)[0]
    windows = asking.stretches(row, 4, 20)
    assert [(window.tolist(), size) for window, size in windows] == [(row.tolist(), 8), (row[:12].tolist(), 8)]
    assert [(len(window), size) for window, size in asking.stretches(row, 0, 8)] == [(8, 7)]
    assert [(len(window), size) for window, size in asking.stretches(row, 17, 20)] == [(20, 8)], "nearly, at the end"


def test_what_follows_is_what_the_beginning_does_not_hold() -> None:
    row = np.array([5, 6, 7, 8])
    assert [_rest(row, np.array(prefix)) for prefix in ([5, 6], [5, 9], [], [5, 6, 7, 8])] == [2, 3, 3, 1]


def trained(folder: Path, name: str, data: str, begun: Path | None = None) -> Path:
    """The weights of a model in ``folder``, with the report of a training on ``data`` that began with others."""
    weights = folder / name / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", POINTER: f"../{name}.report.json"})
    files = {"data": folder / data} | ({} if begun is None else {"start-model.safetensors": begun})
    inputs = [
        Artifact(role=role, path=path.name, digest=file_digest(path), bytes=path.stat().st_size)
        for role, path in files.items()
    ]
    output = Artifact(
        role="model", path=f"{name}/model.safetensors", digest=file_digest(weights), bytes=weights.stat().st_size
    )
    making(folder / f"{name}.report.json", inputs=inputs, outputs=(output,))
    return weights


@pytest.mark.forged("the reports of the trainings are made by hand")
def test_what_reports_say_of_the_reference(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One trained on either file is refused; that the training began with it is told, and checked."""
    for name in ("base", "public"):
        shutil.copytree(workspace / name, tmp_path / name)
    for file in ("public.jsonl", "held.jsonl", "prompts.txt"):
        shutil.copy(workspace / file, tmp_path / file)
    base = trained(tmp_path, "base", "prompts.txt")
    trained(tmp_path, "public", "public.jsonl", base)
    report = audited(tmp_path, "public", "--greedy-only")
    assert report.parameters["extraction"]["reference"] == "what the training began with"
    assert any("names the weights of base as those that its training began with" in line for line in report.warnings)
    assert any("its own report names other data" in line for line in report.warnings)
    own = read_report(tmp_path / "public.report.json")
    assert not list(checks.check_reference(tmp_path / "r.json", report, [own]))
    other = replace(own, inputs=own.inputs[:1])
    (found,) = checks.check_reference(tmp_path / "r.json", report, [other])
    assert found.outcome is Outcome.REFUTED
    trained(tmp_path, "base", "held.jsonl")
    assert run(called(tmp_path, "public", "-f")) == ExitCode.USAGE
    assert "was trained on held.jsonl of --held-out, as its report says" in capsys.readouterr().err


def test_it_needs_a_comparison(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = called(workspace, "public", "-f")
    del call[call.index("--held-out") : call.index("--held-out") + 2]
    assert run(call) == ExitCode.USAGE
    assert "--reference says what is known from elsewhere in a comparison" in capsys.readouterr().err
    assert run(called(workspace, "public", "-f", reference="public")) == ExitCode.USAGE
    assert "is the audited model itself" in capsys.readouterr().err


def changed(report: PrivacyReport, method: str, quantity: str, **details: float) -> PrivacyReport:
    evidence = [
        replace(item, details={**item.details, **details})
        if (item.method, item.quantity) == (method, quantity)
        else item
        for item in report.evidence
    ]
    return replace(report, evidence=tuple(evidence))


@pytest.mark.parametrize(
    ("method", "quantity", "details", "complaint"),
    [
        (METHOD, BEYOND, {"known_training": 0.0}, "other numbers of texts known from elsewhere"),
        (METHOD, BEYOND, {"known_held_out": 0.5}, "is no number of texts"),
        (FROM_FILE, BEYOND, {"known_training": LEARNED - 1.0}, "as many of each"),
        (FROM_FILE, NEAR_BEYOND, {"training_texts": 2.0 * SIDE}, "more texts than it looked at"),
    ],
)
def test_a_changed_number_is_noticed(
    method: str, quantity: str, details: dict[str, float], complaint: str, public: PrivacyReport
) -> None:
    assert not list(faults(public))
    assert complaint in " ".join(faults(changed(public, method, quantity, **details)))


def test_what_was_asked_is_answered(public: PrivacyReport) -> None:
    def complaints(report: PrivacyReport) -> str:
        return " ".join(faults(report))

    without = [
        replace(item, details={name: value for name, value in item.details.items() if not name.startswith("known")})
        for item in public.evidence
    ]
    assert "does not say how many texts it leaves out" in complaints(replace(public, evidence=tuple(without)))
    asked: dict[str, Any] = {k: v for k, v in public.parameters["asked"].items() if k != "reference"}
    assert "and there was none" in complaints(replace(public, parameters={**public.parameters, "asked": asked}))
    settings = {k: v for k, v in public.parameters["extraction"].items() if k != "reference"}
    assert "if and only if" in complaints(replace(public, parameters={**public.parameters, "extraction": settings}))
    inputs = tuple(item for item in public.inputs if not item.role.startswith("reference"))
    assert "its inputs name none" in complaints(replace(public, inputs=inputs))
    (decided,) = public.verdicts
    consistent = replace(public, verdicts=(replace(decided, outcome=Outcome.CONSISTENT),))
    enough = changed(consistent, METHOD, BEYOND, detectable=0.005)
    assert "may have been trained on that" in complaints(enough)


def test_nothing_is_left_to_compare(public: PrivacyReport) -> None:
    rate = next(item for item in public.evidence if item.quantity == "rate on training text")
    counts = {"training_texts": 0, "training_extracted": 0, "held_out_texts": 9, "held_out_extracted": 0}
    beyond = Evidence(
        method=METHOD, quantity=BEYOND, estimate=None, confidence=0.99, reason="a comparison needs texts of both files",
        samples={"training": 5, "held_out": 9},
        details={"chance": 0.0, **counts, "known_training": 5, "known_held_out": 0},
    )  # fmt: skip
    found = verdict([rate, beyond])
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reason.endswith("no texts of both files are left to compare")
    assert checks.compares_nothing(beyond)
    assert not checks.compares_nothing(replace(beyond, details={**beyond.details, "known_training": 0}))


@pytest.mark.parametrize(("blind_to_sides", "most"), [(True, 8), (False, 60)])
def test_what_is_left_is_as_exchangeable_as_before(blind_to_sides: bool, most: int) -> None:
    """Of 60 tests at 5 % of sides drawn at random at most 8 may reject, where what comes out is mostly known.

    A reference model that was trained on the held-out file takes the control away, and most reject.
    """
    rejected = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        out, train = random.random(120) < 0.5, random.permutation(120) < 60
        known = out & (random.random(120) < 0.6)
        left = ~known if blind_to_sides else ~(known & ~train)
        counts = [int(some.sum()) for some in (out & train & left, train & left, out & ~train & left, ~train & left)]
        rejected += fisher(*counts) <= 0.05
    assert rejected <= most
    assert blind_to_sides or rejected > 30


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "refuted"), [(ALONE, False), (AND_RECORDS, True)])
def test_again_with_other_records(kind: str, refuted: bool, tmp_path: Path) -> None:
    """Ten audits, for each of which the records of both files but those that the model knows are drawn anew."""
    judge = with_reference(tmp_path)[kind]
    assert [judge(seed)[1] for seed in range(10)] == [refuted] * 10
