"""The reports of the weights that a training begins with: another report beside them hides none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privctl.data.columns import USUAL
from privctl.domain.report import Artifact
from privctl.models.choices import TaskName
from privctl.storage.digest import file_digest
from privctl.train.release.began_with import EarlierTraining, trained_before, unfitting_reports
from tests.conftest import WriteModel
from tests.gate.made import PROVED, making
from verify.texts.warnings.table import AUDITED_AS_TRAINED_ON


@pytest.mark.parametrize("reports", [1, 2])
def test_an_earlier_training_is_found_beside_the_start(tmp_path: Path, write_model: WriteModel, reports: int) -> None:
    model, data = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)}), tmp_path / "d.jsonl"
    data.write_text('{"text": "a"}\n')
    size, digest = model.stat().st_size, file_digest(model)
    weights = Artifact(role="model", path=model.name, digest=digest, bytes=size)
    again = Artifact(role="data", path=data.name, digest=file_digest(data), bytes=data.stat().st_size)
    making(tmp_path / "m.report.json", PROVED, inputs=[again], outputs=(weights,))
    if reports == 2:  # which says that the same weights come from elsewhere
        making(tmp_path / "m.other.report.json", step="noise", outputs=(weights,))
    job: Any = SimpleNamespace(
        model=SimpleNamespace(initial_weights="checkpoint"),
        request=SimpleNamespace(
            model=SimpleNamespace(adapter_only=False, path=model, adapter=None), data=SimpleNamespace(train=data)
        ),
    )
    assert trained_before(job) == EarlierTraining(path=tmp_path / "m.report.json", on="the same data")
    data.write_text(json.dumps({"text": "b"}) + "\n")
    assert trained_before(job) is None


@pytest.mark.parametrize("role", ["members", "train", "nonmembers"])
def test_an_audit_of_the_start_that_took_the_data_for_its_own_is_named(
    tmp_path: Path, write_model: WriteModel, role: str
) -> None:
    """Whoever audits their model and then trains it again on the same records got a guarantee that does not hold."""
    model, data = write_model(tmp_path / "m.safetensors", {"w": np.ones(3, np.float32)}), tmp_path / "d.jsonl"
    data.write_text('{"text": "a"}\n')
    weights = Artifact(role="model", path=model.name, digest=file_digest(model), bytes=model.stat().st_size)
    audited = Artifact(role=role, path=data.name, digest=file_digest(data), bytes=data.stat().st_size)
    making(tmp_path / "m.audit.report.json", step="audit", inputs=[weights, audited], outputs=())
    job: Any = SimpleNamespace(
        model=SimpleNamespace(initial_weights="checkpoint"),
        request=SimpleNamespace(
            model=SimpleNamespace(adapter_only=False, path=model, adapter=None), data=SimpleNamespace(train=data)
        ),
    )
    said = list(unfitting_reports(job))
    assert len(said) == (role != "nonmembers")
    assert all("m.audit.report.json audited the initial weights as ones that were trained on" in text for text in said)
    assert all(re.fullmatch(AUDITED_AS_TRAINED_ON, text) for text in said)
    data.write_text('{"text": "b"}\n')
    assert not list(unfitting_reports(job))


def test_an_image_in_another_file_is_an_earlier_training_on_it(tmp_path: Path, write_model: WriteModel) -> None:
    (folder := tmp_path / "net").mkdir()
    (folder / "config.json").write_text('{"model_type": "resnet", "num_channels": 3}')
    model = write_model(folder / "model.safetensors", {"w": np.ones(3, np.float32)})
    images, labels = np.arange(4 * 48, dtype=np.uint8).reshape(4, 4, 4, 3), np.arange(4) % 2
    first, own = tmp_path / "first.npz", tmp_path / "own.npz"
    np.savez(first, images=images, labels=labels)
    weights = Artifact(
        role="model", path="net/model.safetensors", digest=file_digest(model), bytes=model.stat().st_size
    )
    data = Artifact(role="data", path=first.name, digest=file_digest(first), bytes=first.stat().st_size)
    making(tmp_path / "net.report.json", PROVED, inputs=[data], outputs=(weights,))
    job: Any = SimpleNamespace(
        model=SimpleNamespace(initial_weights="checkpoint"),
        request=SimpleNamespace(
            task=TaskName.IMAGE_CLASSIFICATION,
            model=SimpleNamespace(adapter_only=False, path=folder, adapter=None),
            data=SimpleNamespace(train=own, columns=USUAL, resize=None, unit=None),
        ),
    )
    others = 255 - images
    np.savez(own, images=others, labels=labels)
    assert trained_before(job) is None
    np.savez(own, images=np.concatenate([others, images[3:]]), labels=np.arange(5) % 2)
    found = trained_before(job)
    assert found is not None
    assert (found.path, found.on) == (tmp_path / "net.report.json", f"record 5 of {own}, from another file,")
