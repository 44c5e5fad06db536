"""What is released beside the weights: nothing that names code, also where the model that was trained did."""

from __future__ import annotations

import json
from pathlib import Path

from privctl.models.guard.keys import STRIPPED
from privctl.train.release.model import _companions
from tests.audits.tiny import save_model
from tests.models.guard.test_folders import load_model


def test_a_release_names_no_code(tmp_path: Path) -> None:
    start = save_model(tmp_path / "start")
    for name in ("config.json", "tokenizer_config.json"):
        path = start / name
        held = json.loads(path.read_text())
        path.write_text(json.dumps({**held, "auto_map": {"AutoTokenizer": ["someone/code--mine.Tokenizer", None]}}))
    model = load_model(start, device="cpu")
    files = dict(_companions(model.network, model.tokenizer))
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= files.keys()
    assert not [(name, key) for name, content in files.items() for key in STRIPPED if key.encode() in content]
    kept = json.loads(files["tokenizer_config.json"])
    assert kept["tokenizer_class"] == json.loads((start / "tokenizer_config.json").read_text())["tokenizer_class"]
