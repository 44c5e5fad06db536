"""Names and texts from files, shown: no terminal and no CI's runner obeys them, whoever wrote them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.reports.codec import encode
from privctl.show.plain import escape_hidden, json_text, plain
from tests.hostile.bombs import facts
from tests.show import made

EVIL = (
    "\n::stop-commands::x\r\n ::set-env name=A::b\x1b]0;title\x07\x1b[2J\x1b[32m\u202e\x9b31m\u2028::add-mask::y "
    "##[error]z ##vso[a]b\x08"
)
#: What is in no output, but for the colours that privctl itself uses.
_OWN = re.compile("\x1b\\[(?:3[123]|0)m")


def harmless(text: str) -> None:
    """Fail where a terminal or a runner would obey a part of ``text``."""
    for line in re.split("[\n\r\x0b\x0c\x85\u2028\u2029]", text):
        assert not line.strip().startswith("::"), line
    assert not re.search(r"##(vso|teamcity)?\[", text)
    left = _OWN.sub("", text).replace("\n", "")
    assert all(c.isprintable() or c == "\u00a0" for c in left), sorted({c for c in left if not c.isprintable()})


@pytest.mark.parametrize("text", [EVIL, "::a", "a ::b", " ::c", "a\t::d", "###[x]", "\u200b::e", "::", "a\u00a0::f"])
def test_the_one_place(text: str) -> None:
    for escaped in (plain(text), escape_hidden(text), escape_hidden(text * 400)):
        harmless(escaped)
        assert "\n" not in escaped
        for width in range(1, 12):  # wherever a line is folded
            harmless(
                "\n".join(escaped[i : i + 1] if escaped[i] != " " else "\n" for i in range(min(width, len(escaped))))
            )
            harmless(escaped.replace(" ", "\n"))


def test_what_is_harmless_stays() -> None:
    for text in ("std::vector", "a:b::c", "model.layers.0", "日本語 ümlaut", "# heading", "## [x]", "ε ≤ 8"):
        assert escape_hidden(text) == plain(text) == text


def test_json_keeps_its_values() -> None:
    data = {"a": EVIL, "日本": ["##[x]", "\U0001f600", "###[", "::x"]}
    escaped = json_text(json.dumps(data, ensure_ascii=False, indent=2))
    harmless(escaped)
    assert json.loads(escaped) == data


def infected(value: Any) -> Any:
    """A domain value with ``EVIL`` in every text that stands for itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        changes = {f.name: infected(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "digest"}
        for name in list(changes):
            if name in ("step", "role") or hints[name] not in (str,):
                changes[name] = getattr(value, name) if isinstance(getattr(value, name), str) else changes[name]
        return dataclasses.replace(value, **changes)
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, (tuple, list)):
        return type(value)(infected(item) for item in value)
    if isinstance(value, dict):
        return {infected(key): infected(item) for key, item in value.items()}
    return value


SOURCES: dict[str, Callable[[], PrivacyReport]] = {
    "trained": made.trained, "audited": made.audited, "noised": made.noised, "planned": made.planned,
    "accounted": made.accounted,
}  # fmt: skip
CALLS = {
    "verify": ["verify", "{}", "-v"],
    "verify as JSON": ["verify", "{}", "--json"],
    "gate": ["gate", "{}", "--max-epsilon", "8", "--max-auc", "0.6", "--min-power", "auc=0.6", "-v"],
    "gate as JSON": ["gate", "{}", "--max-auc", "0.6", "--format", "json"],
    "gate as Markdown": ["gate", "{}", "--max-auc", "0.6", "--max-epsilon", "8", "--format", "markdown"],
    "gate as JUnit": ["gate", "{}", "--max-auc", "0.6", "--max-epsilon", "8", "--format", "junit"],
    "gate as SARIF": ["gate", "{}", "--max-auc", "0.6", "--max-epsilon", "8", "--format", "sarif"],
    "report as Markdown": ["report", "{}", "--format", "markdown", "-o", "-"],
    "report as a card": ["report", "{}", "--format", "model-card", "-o", "-"],
    "report as a statement": ["report", "{}", "--format", "intoto", "-o", "-"],
    "inspect": ["inspect", "{}"],
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("source", SOURCES)
def test_reports_full_of_commands(
    tmp_path: Path, source: str, call: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"x{EVIL.replace('/', '')}.report.json"
    path.write_text(encode(infected(SOURCES[source]())))
    code = run([part.replace("{}", os.fspath(path)) for part in CALLS[call]])
    captured = capsys.readouterr()
    assert code in (0, 1, 2, 3), captured.err
    assert len(captured.out + captured.err) > 40
    harmless(captured.out)
    harmless(captured.err)


def test_the_terminal_views_of_other_steps() -> None:
    from privctl.show.text.audit import audit_text
    from privctl.show.text.retrain import retrain_text

    views = [
        audit_text(infected(made.audited()), verbose=True),
        retrain_text(infected(made.trained()), verbose=True),
    ]
    for text in views:
        assert "stop-commands" in text
        harmless(text)


def test_names_of_tensors_and_files(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {name + EVIL: np.arange(6, dtype=np.float32) for name in ("", "a")}
    model = write_model(tmp_path / f"m{EVIL.replace('/', '')}.safetensors", weights)
    for call in (
        ["inspect", str(model)],
        ["inspect", str(model), "--json"],
        ["noise", str(model), *facts()],
        ["noise", str(model), *facts(), "--json"],
        ["noise", str(model), *facts(), "--exclude", f"nothing{EVIL}"],
        ["inspect", str(model.with_name(f"absent{EVIL}"))],
        ["noise", str(model), "--facts", str(model)],
        ["gate", str(model), EVIL],
        ["gate", "--policy", EVIL, str(model)],
        [EVIL],
        ["noise", str(model), f"--{EVIL}"],
        ["noise", str(model), "--epochs", EVIL],
    ):
        assert run(call) in (0, 1, 2, 3)
        captured = capsys.readouterr()
        assert captured.out or captured.err
        harmless(captured.out)
        harmless(captured.err)


def test_malformed_headers_and_data(
    tmp_path: Path, write_raw: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"dtype": EVIL, "shape": [2], "data_offsets": [0, 8]}
    for header in ({EVIL: entry}, {EVIL: {**entry, "dtype": "F32", EVIL: 1}}):
        assert run(["inspect", str(write_raw(tmp_path / "m.safetensors", json.dumps(header), bytes(8)))]) == 3
        harmless(capsys.readouterr().err)
    data = tmp_path / f"d{EVIL.replace('/', '')}.jsonl"
    data.write_text(json.dumps({EVIL: 1}) + "\n")
    assert run(["secrets", "scan", str(data), "-o", str(tmp_path / "book.jsonl")]) == 3
    harmless(capsys.readouterr().err)
