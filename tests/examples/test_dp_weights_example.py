"""The DP-Weights example: the formula against numbers from elsewhere, its tables and plot, and a tiny run of it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.examples.parts import modules

HERE = Path(__file__).parents[2] / "examples" / "dp_weights"
#: Epochs, batch and claim: the formula's noise, and epsilon for a convex and for any loss, by mpmath. privctl adds what
#: drawing noise in floating point costs, some 1e-7.
BY_MPMATH = {
    (10, 5, 0.01): (0.0140316569058852, 0.0493205935953, 168.363222082),
    (10, 5, 1.0): (0.00976052988025269, 0.0728298432464, 306.229454833),
    (20, 5, 1.0): (0.00976105976050537, 0.152964745715, 1033.11621897),
    (1, 100, 1.0): (0.00976000264940126, 0.000199551293731, 0.364343038732),
}


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    """The example's modules."""
    return modules("dp_weights", without="records")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The results that lie beside the example."""
    found: dict[str, Any] = json.loads((HERE / "results.json").read_text())
    return found


def test_the_results_are_what_follows_from_the_formula(results: dict[str, Any]) -> None:
    answers = {
        (row["epochs"], row["batch_size"], answer["claim"]): answer
        for row in results["formula"]
        for answer in row["answers"]
    }
    for key, (noise, convex, any_loss) in BY_MPMATH.items():
        found = answers[key]
        assert found["noise_stddev"] == pytest.approx(noise, rel=1e-12)
        assert found["convex"] == pytest.approx(convex, rel=1e-5, abs=1e-6)
        assert found["nonconvex"] == pytest.approx(any_loss, rel=1e-6)
        assert found["convex"] >= convex * (1 - 1e-12), "never below"


def test_how_often_the_claims_fail(example: SimpleNamespace, results: dict[str, Any]) -> None:
    """As counted by other code for these 16 trainings."""
    counts = {
        regime: [example.showing.violated(results, regime, i) for i in range(6)] for regime in ("convex", "nonconvex")
    }
    assert counts == {"convex": [6, 1, 0, 0, 0, 0], "nonconvex": [16, 16, 14, 10, 5, 1]}


def test_one_training_again(example: SimpleNamespace, results: dict[str, Any], tmp_path: Path) -> None:
    row = example.measuring.formula(example.settings.Formula(), tmp_path, 10, 5)
    stored = next(each for each in results["formula"] if (each["epochs"], each["batch_size"]) == (10, 5))
    assert len(row["answers"]) == len(stored["answers"]) == 6
    for found, known in zip(row["answers"], stored["answers"], strict=True):
        assert found == pytest.approx(known, rel=1e-9)


def test_the_verdicts_on_the_claims(results: dict[str, Any]) -> None:
    verdicts = {claim["key"]: claim["outcome"] for claim in results["claims"]}
    assert (len(verdicts), list(verdicts.values()).count("REFUTED")) == (18, 13)
    assert verdicts["dpw-convex-1"] == "PROVED"
    assert verdicts["dpw-nonconvex-1"] == verdicts["dpw-sensitivity"] == "REFUTED"


@pytest.mark.slow
def test_the_tables_and_the_plot_are_those_of_the_results(example: SimpleNamespace, results: dict[str, Any]) -> None:
    text = example.showing.table(results)
    assert text == (HERE / "table.md").read_text()
    drawn = example.showing.plot(results)
    assert drawn == example.showing.plot(results)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    models = [row for row in rows if row[0] in ("no noise", "the paper's formula") and len(row) == 7]
    assert [row[1] for row in models] == ["–", "100", "10", "1", "0.1"]
    assert rows[-1][:2] == ["calibrated, for any loss", "8"]
    assert rows[-1][5] == "infinite"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_whole_run_and_going_on(example: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model is noised as asked, epsilon follows where it was calibrated, and a second start does nothing again."""
    monkeypatch.setattr(example.settings, "QUICK_MODELS", example.settings.Models(notes=30, published=(1.0,)))
    example.run.main(["-o", str(tmp_path), "--quick"])
    found = json.loads((tmp_path / "results.json").read_text())
    models = {row["kind"]: row for row in found["models"]}
    assert set(models) == {"none", "published", "convex", "nonconvex"}
    assert models["none"]["noise_stddev"] == 0
    assert models["published"]["nonconvex"] is None or models["published"]["nonconvex"] > 1
    assert models["convex"]["convex"] == pytest.approx(8.0, rel=1e-6)
    assert models["nonconvex"]["nonconvex"] == pytest.approx(8.0, rel=1e-6)
    assert models["convex"]["noise_stddev"] < models["nonconvex"]["noise_stddev"]
    assert all(0 <= row["auc"][1] <= row["auc"][0] <= row["auc"][2] <= 1 for row in found["models"])

    def must_not(*_: object) -> None:
        raise AssertionError("noised again")

    monkeypatch.setattr(example.measuring, "noised", must_not)
    example.run.main(["-o", str(tmp_path), "--quick"])
    assert json.loads((tmp_path / "results.json").read_text()) == found
    with pytest.raises(SystemExit, match="other settings"):
        example.run.main(["-o", str(tmp_path)])
