"""The FERRET example: its split, its grid, its table and plot, and the whole of it on a tiny model."""

from __future__ import annotations

import gzip
import json
import math
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from privctl.data.records import read_records
from privctl.models.language import LanguageModel, load_model
from tests.audits import tiny
from tests.examples.parts import modules


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    """The example's modules."""
    return modules("ferret")


def rows(pages: int, each: int = 3) -> list[dict[str, str]]:
    texts = tiny.sentences(pages * each, seed=1, longest=12)
    return [
        {"page": f"p{i // each}", "instruction": f"w{i % 7} w{i // each % 60}", "output": text}
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder as ``--data-dir`` names it, with a tiny model and invented pairs."""
    folder = tmp_path / "data"
    (folder / "text").mkdir(parents=True)
    tiny.save_model(folder / "stories260k")
    with gzip.open(folder / "text" / "tldr_pairs.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(70))
    return folder


def test_split_takes_one_record_of_each_page(example: SimpleNamespace) -> None:
    records = rows(50)
    page_of = {f"{row['instruction']}: {row['output']}": row["page"] for row in records}
    found = example.records.split([*records, *records], 20, 10)
    parts = (found.members, found.nonmembers, found.tuning)
    assert [len(part) for part in parts] == [20, 20, 10]
    assert set(Counter(page_of[text] for part in parts for text in part).values()) == {1}
    assert found == example.records.split(records, 20, 10)  # repeated records change nothing
    assert found != example.records.split(records, 20, 10, seed=1)
    with pytest.raises(ValueError, match="50 different pages are too few"):
        example.records.split(records, 21, 9)


def test_grid_has_every_cell_once_and_shuffles_within_a_seed(example: SimpleNamespace) -> None:
    cells = example.settings.grid(["plain", "ferret-max", "dp-sgd"], [1, 3], [0.5, 2.0], 2)
    assert len(cells) == len({cell.key for cell in cells}) == 2 * 2 * (1 + 2 + 2)
    assert [cell.seed for cell in cells] == [0] * 10 + [1] * 10
    order = [[(c.method, c.epochs, c.epsilon) for c in cells if c.seed == seed] for seed in (0, 1)]
    assert order[0] != order[1]
    assert sorted(order[0], key=str) == sorted(order[1], key=str)


@pytest.mark.parametrize(
    ("method", "epochs", "epsilon", "possible"),
    [
        ("ferret-2", 1, 1.0, True),
        ("ferret-2", 1, 1.4, False),  # 2 ln 2 = 1.386 nats
        ("ferret-2", 3, 4.1, True),
        ("ferret-max", 1, 9.0, True),
        ("dp-sgd", 1, 9.0, True),
        ("plain", 1, None, True),
    ],
)
def test_more_nats_than_groups_can_publish_are_left_out(
    example: SimpleNamespace, method: str, epochs: int, epsilon: float | None, possible: bool
) -> None:
    cell = example.settings.Cell(method=method, epochs=epochs, epsilon=epsilon, seed=0)
    assert (example.settings.left_out(cell) is None) is possible


def row(method: str, epsilon: float | None, seconds: float, **more: Any) -> dict[str, Any]:
    """A row of results, as ``measuring.measured`` makes them."""
    return {
        "key": f"{method}-{epsilon}-{seconds}", "method": method, "epochs": 1, "epsilon": epsilon, "seed": 0,
        "seconds": seconds, "steps": 10, "fired_steps": 4, "published_numbers": None, "guarantee": None,
        "auc_loss": [0.5, 0.4, 0.6], "auc_best": [0.52, 0.41, 0.63], "best_attack": "zlib",
        "auc_blind": [0.5, 0.4, 0.6], "confidence_each": 0.998, "perplexity": 20.0, **more,
    }  # fmt: skip


def results() -> dict[str, Any]:
    nats = {"notion": "mutual-information", "epsilon": 0.5, "delta": 0.0, "auc_cap": 0.995, "worst_case_delta": 0.53}
    private = {"notion": "approximate-dp", "epsilon": 0.4999999, "delta": 1e-05, "auc_cap": 0.54}
    return {
        "settings": {
            "members": 7, "nonmembers": 7, "batch_size": 5, "max_length": 8, "tuned_at": {"epsilon": 1.0, "epochs": 3}
        },
        "base": row("plain", None, 0.0, perplexity=99.0),
        "left_out": ["FERRET-2 at 2 nats: 1 x 2 bits are 1.39 nats"],
        "tuning": [
            {"method": "ferret-max", "learning_rate": 0.1, "perplexity": 7.0},
            {"method": "ferret-max", "learning_rate": 0.01, "perplexity": 6.0},
        ],
        "runs": [
            row("ferret-max", 0.5, 1.0, published_numbers=6, guarantee=nats),
            row("ferret-max", 0.5, 2.0, published_numbers=8, guarantee=nats, auc_best=[0.54, 0.43, 0.66]),
            row("dp-sgd", 0.5, 9.0, guarantee=private),
            row("plain", None, 4.0),
            row("plain", None, 2.0),
        ],
    }  # fmt: skip


def test_table_keeps_epsilon_and_nats_apart(example: SimpleNamespace) -> None:
    lines = [line.strip("| ").split(" | ") for line in example.showing.table(results()).splitlines() if line[:1] == "|"]
    headings, _, base, plain, private, ferret = lines
    column = {name: i for i, name in enumerate(headings)}
    assert (base[column["method"]], base[column["held-out perplexity"]]) == ("base model, not trained", "99")
    assert plain[column["share of plain's time"]] == "100 %"
    assert (private[column["ε of (ε, δ)-DP"]], private[column["nats of mutual information"]]) == ("0.5", "–")
    assert private[column["share of plain's time"]] == "300 %"
    assert private[column["guarantee"]] == "(0.5, 1e-05)-DP; AUC ≤ 0.540"
    assert (ferret[column["ε of (ε, δ)-DP"]], ferret[column["nats of mutual information"]]) == ("–", "0.5")
    assert ferret[column["AUC, best attack"]] == "0.530 (0.410 to 0.660), zlib"
    assert ferret[column["guarantee"]] == "0.5 nats; AUC ≤ 0.995; at every ε, δ ≥ 0.53"
    assert (ferret[column["numbers published"]], ferret[column["runs"]]) == ("7", "2")
    assert "- FERRET-MAX: 0.1 gives 7, **0.01 gives 6**" in example.showing.table(results())
    assert "Not possible: FERRET-2 at 2 nats" in example.showing.table(results())


@pytest.mark.slow
def test_plot_is_svg_and_the_same_each_time(example: SimpleNamespace) -> None:
    drawn = example.showing.plot(results())
    assert drawn == example.showing.plot(results())
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def perplexity(model: LanguageModel, texts: list[str]) -> float:
    """Exp of the mean loss by transformers alone, of texts cut to 16 tokens and without an end-of-text token."""
    losses, tokens = 0.0, 0
    for text in texts:
        ids = model.tokenizer(text, return_tensors="pt").input_ids[:, :16]
        with torch.no_grad():
            losses += float(model.network(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return math.exp(losses / tokens)


@pytest.mark.slow
def test_whole_run_and_going_on(
    example: SimpleNamespace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain of commands works, the numbers are the models' own, and a second start trains nothing again."""
    methods = ["plain", "ferret-max", "ferret-gaussian"]
    output = tmp_path / "out"
    arguments = ["--data-dir", str(data), "-o", str(output), "--quick", "--members", "30", "--tuning", "6"]
    arguments += ["--batch-size", "5", "--max-length", "16", "--methods"]
    example.run.main([*arguments, *methods])
    found = json.loads((output / "results.json").read_text())
    by_method = {run["method"]: run for run in found["runs"]}
    assert set(by_method) == set(methods)
    assert all(each["seconds"] > 0 for each in by_method.values())
    assert by_method["plain"]["guarantee"] is None
    assert by_method["ferret-max"]["guarantee"]["notion"] == "mutual-information"
    assert 0 < by_method["ferret-max"]["guarantee"]["worst_case_delta"] < 1
    assert by_method["ferret-gaussian"]["guarantee"]["epsilon"] == pytest.approx(1, abs=0.01)
    texts = [record.text for record in read_records(output / "runs" / "nonmembers.jsonl")]
    base = load_model(data / "stories260k", device="cpu")
    assert found["base"]["perplexity"] == pytest.approx(perplexity(base, texts), rel=1e-4)
    assert "FERRET-MAX, Gaussian release" in (output / "table.md").read_text()
    assert not list((output / "runs").glob("*/model.safetensors"))

    def must_not(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(example.measuring, "measured", must_not)
    monkeypatch.setattr(example.measuring, "warm_up", lambda *_: None)
    example.run.main([*arguments, *methods])
    assert json.loads((output / "results.json").read_text()) == found
    with pytest.raises(SystemExit, match="other settings"):
        example.run.main(["--data-dir", str(data), "-o", str(output), "--quick", "--members", "31"])
