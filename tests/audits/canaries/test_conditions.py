"""Planted faults, each of which must be caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audits.canaries.conditions import conditions, data_conditions, violated_conditions
from audits.canaries.manifest import Coins, Manifest, commitment_of, encode_manifest, read_manifest
from privctl.domain.errors import InputError
from privctl.domain.guarantee import AssumptionState
from tests.audits.canaries.small import planted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    planted(folder, copies=(1, 3))
    return folder


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return read_manifest(folder / "m.json")


def recommitted(manifest: Manifest, **changes: Any) -> Manifest:
    changed = replace(manifest, **changes)
    return replace(changed, commitment=commitment_of(changed))


def broken(manifest: Manifest, **settings: Any) -> set[str]:
    return {condition.name for condition in violated_conditions(conditions(manifest, **settings))}


def test_a_manifest_comes_back(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(encode_manifest(manifest))
    assert read_manifest(tmp_path / "m.json") == manifest
    assert commitment_of(manifest) == manifest.commitment


def test_a_sound_planting(manifest: Manifest, folder: Path) -> None:
    known = conditions(manifest, commitment=manifest.commitment, trained_on=[manifest.planted.digest])
    states = {each.name: each.state for each in known}
    assert states.pop("independent coins") is AssumptionState.ASSERTED
    assert set(states.values()) == {AssumptionState.CHECKED}
    assert not violated_conditions(data_conditions(manifest, folder / "planted.jsonl"))
    unknown = {assumption.name for assumption in conditions(manifest) if assumption.state is AssumptionState.ASSERTED}
    assert unknown == {"commitment", "independent coins", "trained on the planted data"}


def test_an_edited_manifest(manifest: Manifest) -> None:
    first, *rest = manifest.canaries
    edited = replace(manifest, canaries=(replace(first, included=not first.included), *rest))
    assert broken(edited) == {"commitment"}
    assert broken(recommitted(edited)) == set()
    assert broken(recommitted(edited), commitment=manifest.commitment) == {"commitment"}
    guesses = (replace(manifest.guesses[0], included=1, divided=False), *manifest.guesses[1:])
    assert broken(replace(manifest, guesses=guesses)) == {"commitment"}, "numbers of guesses are fixed beforehand"


def test_one_secret_under_two_coins(manifest: Manifest) -> None:
    first, second, *rest = manifest.canaries
    twice = recommitted(manifest, canaries=(first, replace(second, secret=first.secret), *rest))
    assert broken(twice) == {"distinct canaries"}


def test_coins_that_are_not_fair_and_secret(manifest: Manifest) -> None:
    assert broken(recommitted(manifest, coins=Coins.SEED)) == {"independent coins"}
    every = tuple(replace(canary, included=True) for canary in manifest.canaries)
    assert broken(recommitted(manifest, canaries=every)) == {"number included"}


def test_a_commitment_does_not_show_how_the_coins_were_drawn(manifest: Manifest) -> None:
    """Whoever writes a manifest, with every second canary included, can commit to it as well."""
    chosen = tuple(replace(canary, included=i % 2 == 0) for i, canary in enumerate(manifest.canaries))
    written = recommitted(manifest, canaries=chosen)
    for commitment in (written.commitment, f" {written.commitment.upper()}\n"):
        states = {each.name: each.state for each in conditions(written, commitment=commitment)}
        assert states["commitment"] is AssumptionState.CHECKED
        assert states["independent coins"] is AssumptionState.ASSERTED


def test_exactly_half_may_have_been_drawn_as_a_fixed_number(manifest: Manifest) -> None:
    count = len(manifest.canaries)
    for included, says in ((count // 2, "even if that number was fixed"), (count // 2 + 1, "which fair coins give")):
        drawn = tuple(replace(canary, included=i < included) for i, canary in enumerate(manifest.canaries))
        changed = recommitted(manifest, canaries=drawn)
        (found,) = [e for e in conditions(changed, commitment=changed.commitment) if e.name == "number included"]
        assert found.state is AssumptionState.CHECKED
        assert says in found.statement


def test_a_model_trained_on_other_data(manifest: Manifest) -> None:
    assert broken(manifest, trained_on=["blake3:00"]) == {"trained on the planted data"}


def line_of(manifest: Manifest, included: bool) -> bytes:
    return next(manifest.line(canary) for canary in manifest.canaries if canary.included is included)


def a_copy_more(manifest: Manifest, lines: list[bytes]) -> list[bytes]:
    return [*lines, line_of(manifest, included=True)]


def a_copy_less(manifest: Manifest, lines: list[bytes]) -> list[bytes]:
    lines.remove(line_of(manifest, included=True))
    return lines


def one_left_out_is_there(manifest: Manifest, lines: list[bytes]) -> list[bytes]:
    return [*lines, line_of(manifest, included=False)]


def a_secret_elsewhere(manifest: Manifest, lines: list[bytes]) -> list[bytes]:
    return [*lines, json.dumps({"text": f"as I said, {manifest.canaries[0].secret}"}).encode() + b"\n"]


def another_record(manifest: Manifest, lines: list[bytes]) -> list[bytes]:
    return [*lines, b'{"text": "waa"}\n']


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (a_copy_more, {"copies", "secrets"}),
        (a_copy_less, {"copies", "secrets"}),
        (one_left_out_is_there, {"source", "secrets"}),
        (a_secret_elsewhere, {"source", "secrets"}),
        (another_record, {"source"}),
    ],
)
def test_faults_in_the_data(
    manifest: Manifest, folder: Path, tmp_path: Path, fault: Callable[..., list[bytes]], caught: set[str]
) -> None:
    lines = (folder / "planted.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "p.jsonl").write_bytes(b"".join(fault(manifest, lines)))
    found = violated_conditions(data_conditions(manifest, tmp_path / "p.jsonl"))
    assert {each.name for each in found} == {"planted data", *caught}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.pop("salt"), "lacks the key 'salt'"),
        (lambda data: data.update(salt="00"), "salt must be 32 bytes"),
        (lambda data: data.update(extra=1), "unknown key 'extra'"),
        (lambda data: data.update(version=2), "has version 2"),
        (lambda data: data.update(kind="other"), "is not a manifest of canaries"),
        (lambda data: data.update(delta=1), "delta is 1"),
        (lambda data: data.update(canaries=[]), "there are no canaries"),
        (lambda data: data["canaries"][3].update(copies=0), "at least one copy"),
        (lambda data: data["canaries"][3].update(format=1), "format beyond the 1 listed"),
        (lambda data: data["canaries"][3].update(included=1), "canaries[3].included is 1; expected true or false"),
        (lambda data: data["formats"][0].update(space=5), "space is 5"),
        (lambda data: data["guesses"][0].update(included=99), "99 and 10 guesses do not fit 20 canaries"),
        (lambda data: data["guesses"][0].update(canaries=21), "20 guesses on 21 canaries are not all"),
    ],
)
def test_a_wrong_manifest_ends_in_one_sentence(
    folder: Path, tmp_path: Path, change: Callable[[Any], object], sentence: str
) -> None:
    data = json.loads((folder / "m.json").read_text())
    change(data)
    path = tmp_path / "m.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_manifest(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_no_manifest_at_all(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"kind": "privctl-canaries"}'):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(InputError):
            read_manifest(tmp_path / "m.json")
