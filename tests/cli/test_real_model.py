"""The whole path on a real pretrained model and real text; skipped where they are not at hand."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from privctl.cli import run
from privctl.domain.mechanism import WeightNoise
from privctl.reports.files import read_report
from tests.few import few

FACTS = ["--epochs", "10", "--learning-rate", "5e-5", "--clip-norm", "1", "--dataset-size", "1000", "--batch-size", "5"]


@pytest.fixture
def stories(tmp_path: Path, shared_data: Path) -> Path:
    folder = tmp_path / "stories260k"
    shutil.copytree(shared_data / "stories260k", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    return folder


@pytest.mark.slow
def test_noise_inspect_generate_audit(
    stories: Path, tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["noise", str(stories), "--epsilon", "1", "--calibration", "published", "-q", *FACTS]) == 0
    private = tmp_path / "stories260k.noised"
    report = read_report(tmp_path / "stories260k.noised.report.json")
    assert isinstance(report.mechanism, WeightNoise)
    assert report.mechanism.noise_stddev == pytest.approx(0.00976052988025269, rel=1e-12)
    epsilons = {g.name: g.epsilon for g in report.guarantees if g.adjacency.value != "zero-out"}
    assert epsilons["published"] == 1
    assert epsilons["convex"] == pytest.approx(0.0728298432464, rel=1e-5)
    assert epsilons["nonconvex"] == pytest.approx(306.229454833, rel=1e-6)

    assert run(["inspect", str(private), "-q"]) == 0
    assert "nonconvex: epsilon 306.23" in capsys.readouterr().out

    network, tokenizer = AutoModelForCausalLM.from_pretrained(private), AutoTokenizer.from_pretrained(private)
    before = AutoModelForCausalLM.from_pretrained(stories)
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    text = tokenizer.decode(network.generate(**prompt, max_new_tokens=40, do_sample=False)[0])
    assert sum(word in text for word in (" a ", " the ", " was ", " to ", " and ")) >= 3, text
    assert not torch.equal(network.lm_head.weight, before.lm_head.weight)

    lines = (shared_data / "text" / "tinyshakespeare.txt").read_text().split("\n\n")
    texts = [line for line in dict.fromkeys(lines) if len(line) > 40][:240]
    for name, part in (("a", texts[::2]), ("b", texts[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in part))
    sets = ["--members", str(tmp_path / "a.jsonl"), "--nonmembers", str(tmp_path / "b.jsonl")]
    assert run(["audit", str(private), "-q", *sets]) == 0
    audited = read_report(tmp_path / "stories260k.noised.audit.report.json")
    area = next(e for e in audited.evidence if e.quantity == "AUC")
    assert area.lower is not None
    assert area.upper is not None
    assert area.lower < 0.5 < area.upper  # it never saw either half
    assert audited.parents[0].path == "stories260k.noised.report.json"


@pytest.mark.parametrize(("marker", "rows"), few([("--epsilon 1 --epsilon 8", 2), ("--calibration published", 1)], 1))
def test_the_guides_table_of_noise_is_what_comes_out(
    marker: str,
    rows: int,
    tmp_path: Path,
    root: Path,
    shared_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The guide's own commands but for ``--evaluate``, on the model that it names."""
    below = (root / "docs" / "guide.md").read_text(encoding="utf-8").partition(f"privctl noise model/ {marker}")[2]
    call = f"noise model/ {marker} {below}".partition("```")[0].replace("\\\n", " ").split()
    at = call.index("--evaluate")
    shutil.copytree(shared_data / "stories260k", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert run([*call[:at], *call[at + 2 :]]) == 0
    stdout = table(capsys.readouterr().out)
    assert len(stdout) == rows
    assert [[*row[:-2], row[-1]] for row in table(below)[:rows]] == stdout


def table(text: str) -> list[list[str]]:
    """The rows of candidates."""
    return [row for line in text.splitlines() if len(row := line.split()) > 4 and row[-1].startswith("model.")]
