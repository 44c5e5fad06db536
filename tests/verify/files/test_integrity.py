"""Integrity: planted changes to a model or its chain of reports are found and named."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.storage.digest import file_digest, hash_tensors
from privctl.storage.reader import open_checkpoint
from verify.files.integrity import ChainLink, check_chain

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
RNG = np.random.default_rng(3)


@pytest.fixture
def chain(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    """A model noised twice; returns the last file."""
    weights = {name: RNG.standard_normal((20, 3)).astype(np.float32) for name in ("first", "second", "third")}
    model = write_model(tmp_path / "m.safetensors", weights)
    assert run(["noise", str(model), "-q", *FACTS]) == 0
    assert run(["noise", str(tmp_path / "m.private.safetensors"), "-q"]) == 0
    return tmp_path / "m.private.private.safetensors"


def check(model: Path) -> tuple[ChainLink, ...]:
    with open_checkpoint(model) as checkpoint:
        hashed = {file.path: hash_tensors(file) for file in checkpoint.files}
    return check_chain(model.with_name(model.name.replace(".safetensors", ".report.json")), hashed)


def refuted(links: tuple[ChainLink, ...]) -> list[str]:
    return [f"{v.subject}: {v.reason}" for link in links for v in link.verdicts if v.outcome is Outcome.REFUTED]


def test_an_untouched_chain_is_proved(chain: Path) -> None:
    links = check(chain)
    assert [link.depth for link in links] == [0, 1]
    assert {v.outcome for link in links for v in link.verdicts} == {Outcome.PROVED}
    assert run(["inspect", str(chain), "-q"]) == 0


def test_one_changed_weight_names_its_tensor(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_checkpoint(chain) as checkpoint:
        (file,) = checkpoint.files
        tensor = next(t for t in file.tensors if t.name == "second")
        place = file.header.data_start + tensor.begin
    with chain.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"\x01\x02")
    (line,) = refuted(check(chain))
    assert line.endswith("changed: second")
    assert run(["inspect", str(chain), "-q"]) == 1
    assert "changed: second" in capsys.readouterr().out


def test_a_changed_header_is_found(chain: Path) -> None:
    content = chain.read_bytes()
    chain.write_bytes(content.replace(b'"pt"', b'"np"'))
    (line,) = refuted(check(chain))
    assert "changed" not in line


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def test_an_edited_parent_report_is_found(chain: Path) -> None:
    parent = chain.with_name("m.private.report.json")
    edit(parent, lambda report: report["guarantees"][0].update(epsilon=0.1))
    assert any(line.startswith("m.private.report.json") for line in refuted(check(chain)))


def test_a_report_of_other_weights_is_found(chain: Path) -> None:
    own = chain.with_name("m.private.private.report.json")
    edit(own, lambda report: report["inputs"][0].update(digest="blake3:" + "0" * 64))
    assert any("parent report did not write it" in line for line in refuted(check(chain)))


def test_an_unreadable_parent_is_found(chain: Path) -> None:
    chain.with_name("m.private.report.json").write_text("{")
    assert any("not valid JSON" in line for line in refuted(check(chain)))


def test_a_missing_parent_is_not_taken_for_proof(chain: Path) -> None:
    chain.with_name("m.private.report.json").unlink()
    links = check(chain)
    assert not refuted(links)
    assert links[1].report is None
    assert links[1].verdicts[0].outcome is Outcome.INCONCLUSIVE


def test_a_chain_that_loops_ends(chain: Path) -> None:
    own = chain.with_name("m.private.private.report.json")
    edit(own, lambda report: report["parents"][0].update(path=own.name))
    assert any("loops" in line for line in refuted(check(chain)))


def test_two_steps_may_share_a_parent(chain: Path) -> None:
    own, shared = chain.with_name("m.private.private.report.json"), chain.with_name("m.private.report.json")
    aunt = chain.with_name("aunt.report.json")
    report = json.loads(own.read_text())
    aunt.write_text(json.dumps({**report, "step": "audit", "outputs": []}))
    digest = file_digest(aunt)
    edit(
        own,
        lambda r: r.update(step="audit", outputs=[], parents=[*r["parents"], {"path": aunt.name, "digest": digest}]),
    )
    links = check_chain(own, {})
    assert not refuted(links)
    assert [link.path.name for link in links].count(shared.name) == 1


def test_a_moved_model_is_known_by_its_digest(chain: Path) -> None:
    moved = chain.with_name("elsewhere.safetensors")
    chain.rename(moved)
    with open_checkpoint(moved) as checkpoint:
        hashed = {file.path: hash_tensors(file) for file in checkpoint.files}
    links = check_chain(chain.with_name("m.private.private.report.json"), hashed)
    assert {v.outcome for v in links[0].verdicts} == {Outcome.PROVED}


@pytest.fixture
def folder(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    """A model's folder noised twice, its configuration with it."""
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m" / "model.safetensors", {"w": RNG.standard_normal((20, 3)).astype(np.float32)})
    (tmp_path / "m" / "config.json").write_text("{}")
    assert run(["noise", str(tmp_path / "m"), "-q", *FACTS]) == 0
    return tmp_path


def of_folder(model: Path) -> list[str]:
    with open_checkpoint(model) as checkpoint:
        hashed = {file.path: hash_tensors(file) for file in checkpoint.files}
    return refuted(check_chain(model.with_name(f"{model.name}.report.json"), hashed))


@pytest.mark.parametrize(
    "name",
    [
        "adapter_model.safetensors",
        "pytorch_model.bin",
        "modeling.py",
        "sub/config.json",
        "LICENSE.bin",
        ".w.safetensors",
    ],
)
def test_a_file_that_no_report_lists_is_named(folder: Path, name: str) -> None:
    released = folder / "m.private"
    (released / "README.md").write_text("A model.")
    assert of_folder(released) == []
    (released / name).parent.mkdir(exist_ok=True)
    (released / name).write_text("{}")
    assert of_folder(released) == [f"{name}: it lies in the folder, and no report lists it"]


def test_a_file_whose_name_is_not_utf_8_is_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released = folder / "m.private"
    (released / os.fsdecode(b"x\xff.json")).write_text("{}")
    assert of_folder(released) == ["x\\udcff.json: it lies in the folder, and no report lists it"]
    verdicts = folder / "verdicts.report.json"
    assert run(["verify", str(folder / "m.private.report.json"), "-q", "-o", str(verdicts)]) == 1
    assert "x\\\\udcff.json" in verdicts.read_text()
    capsys.readouterr()


@pytest.mark.parametrize("role", ["companion", "model"])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "extra.safetensors", "evil.py"])
@pytest.mark.forged("files that no step writes are listed")
def test_weights_and_code_are_refuted_though_the_report_lists_them(
    folder: Path, write_model: Callable[..., Path], name: str, role: str
) -> None:
    released = folder / "m.private"
    write_model(released / name, {"x": np.ones(3, np.float32)})
    listed = {"role": role, "path": f"m.private/{name}", "digest": file_digest(released / name),
              "bytes": (released / name).stat().st_size, "tensors": []}  # fmt: skip
    edit(released.with_name("m.private.report.json"), lambda report: report["outputs"].append(listed))
    with open_checkpoint(released) as checkpoint:
        hashed = {file.path: hash_tensors(file) for file in checkpoint.files}
    if role == "model" and name.endswith(".safetensors"):
        with open_checkpoint(released / name) as checkpoint:
            hashed |= {file.path: hash_tensors(file) for file in checkpoint.files}
    found = refuted(check_chain(released.with_name("m.private.report.json"), hashed))
    assert any(line.startswith(f"{name}: ") for line in found)


@pytest.mark.forged("the configuration is edited between two steps")
def test_a_configuration_that_changed_between_two_steps_is_named(folder: Path) -> None:
    (folder / "m.private" / "config.json").write_text('{"rms_norm_eps": 0.1}')
    assert run(["noise", str(folder / "m.private"), "-q"]) == 0
    found = of_folder(folder / "m.private.private")
    assert "m.private/config.json: the noise step read it, but its parent report wrote another" in found
