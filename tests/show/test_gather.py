"""From files to what is drawn: curves against counts, bounds against known numbers, broken chains."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import file_artifact, write_report
from privctl.show.gather.bounds import bounds_of
from privctl.show.gather.files import with_files
from privctl.show.gather.load import load
from privctl.show.summary import summarize
from privctl.storage.arrays import write_arrays
from privctl.storage.digest import file_digest
from tests.conftest import WriteModel
from tests.show.made import audited, noised, trained


def scores(path: Path, member: Any, **arrays: Any) -> None:
    write_arrays(path, {"member": member, **{name.replace("_", "."): a for name, a in arrays.items()}}, {})


def put(folder: Path, name: str, report: PrivacyReport, outputs: dict[str, str], *parents: str) -> Path:
    """A report on disk with the digests that files there have, built on ``parents``."""
    path = folder / f"{name}.report.json"
    found = tuple(file_artifact(role, folder / file, path) for file, role in outputs.items())
    above = tuple(ParentReport(path=p, digest=file_digest(folder / p)) for p in parents)
    write_report(path, replace(report, outputs=found, parents=above))
    return path


@pytest.fixture
def folder(tmp_path: Path, write_model: WriteModel) -> Path:
    """A trained model, a noised one with an audit."""
    rng = np.random.default_rng(0)
    write_model(tmp_path / "m.safetensors", {"w": rng.normal(size=(20, 30)).astype(np.float32)})
    write_model(tmp_path / "n.safetensors", {"w": np.full(8, 3.0, np.float32), "b": np.full(4, 0.5, np.float64)})
    member = rng.random(3000) < 0.5
    scores(
        tmp_path / "a.scores.safetensors",
        member,
        score_loss=rng.normal(size=3000) + member,
        canary_exposure=np.array([0.2, 1.5, 3.0, 9.9, 0.1]),
        canary_included=np.array([1, 1, 1, 1, 0], dtype=bool),
        canary_copies=np.array([1, 1, 1, 10, 10]),
        canary_scored=np.array([1, 1, 0, 1, 1], dtype=bool),
        canary_among=np.full(5, 1024),
    )
    put(tmp_path, "m", trained(), {"m.safetensors": "model"})
    put(tmp_path, "n", noised(), {"n.safetensors": "model"}, "m.report.json")
    put(tmp_path, "a", audited(), {"a.scores.safetensors": "scores"}, "n.report.json")
    return tmp_path


def test_the_chain_is_followed_and_the_model_at_its_end_is_judged(folder: Path) -> None:
    found = load([folder / "a.report.json"])
    assert [source.name for source in found.sources] == ["m", "n", "a"]
    (subject,) = found.subjects
    assert (subject.source.name, [s.name for s in subject.audits]) == ("n", ["a"])
    assert summarize(subject).worst is Outcome.REFUTED
    assert all(v.outcome is Outcome.PROVED for s in found.sources for v in s.digests)


def test_a_changed_file_is_noticed_and_nothing_is_drawn_from_it(folder: Path) -> None:
    path = folder / "a.scores.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    audit = load([folder / "a.report.json"]).sources[-1]
    assert audit.roc == ()
    assert [v.outcome for v in audit.digests] == [Outcome.PROVED, Outcome.REFUTED]
    assert "nothing is drawn" in audit.left_out[0]


def test_a_parent_whose_status_was_raised_is_not_relied_on(folder: Path) -> None:
    report = folder / "n.report.json"
    report.write_text(report.read_text().replace('"epsilon": 8.0', '"epsilon": 0.1'))
    (subject,) = load([folder / "a.report.json"]).subjects
    standing = summarize(subject)
    assert standing.check is Outcome.REFUTED
    assert "Do not rely on this" in standing.verified
    assert "n.report.json" in standing.verified


def test_a_missing_or_foreign_parent_is_said_and_its_content_is_not(folder: Path) -> None:
    (folder / "m.report.json").write_text('{"secret": "hunter2"}')
    noise = load([folder / "n.report.json"]).sources[0]
    assert noise.absent == ("m.report.json",)
    assert "hunter2" not in repr(noise)
    (folder / "m.report.json").unlink()
    assert load([folder / "n.report.json"]).sources[0].absent == ("m.report.json",)


def test_reports_that_name_each_other_end(folder: Path) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        parent = ParentReport(path=f"{other}.report.json", digest="blake3:00")
        write_report(folder / f"{name}.report.json", replace(trained(), parents=(parent,)))
    assert len(load([folder / "x.report.json"]).sources) == 2


def test_more_reports_than_a_page_holds_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / f"r{i}.json" for i in range(201)]
    for path in paths:
        write_report(path, replace(trained(), outputs=()))
    with pytest.raises(CommandError, match="more than 200; give fewer"):
        load(paths)


@pytest.mark.parametrize("path", ["x" * 5000, "a\x00b", "/dev/zero", "../" * 40 + "etc"])
def test_paths_that_no_file_has_are_only_missing(tmp_path: Path, path: str) -> None:
    outputs = tuple(Artifact(role=role, path=path, digest="blake3:00", bytes=1) for role in ("model", "scores"))
    report = tmp_path / "r.report.json"
    write_report(report, replace(noised(), outputs=outputs))
    (source,) = load([report]).sources
    assert {v.outcome for v in source.digests} == {Outcome.INCONCLUSIVE}
    write_report(report, replace(audited(), outputs=outputs))
    assert load([report]).sources[0].roc == ()


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    artifact = Artifact(role="model", path="pipe", digest="blake3:00", bytes=1)
    write_report(tmp_path / "r.report.json", replace(noised(), outputs=(artifact,)))
    assert load([tmp_path / "r.report.json"]).sources[0].tensors == ()


def test_roc_and_band_are_those_of_an_independent_count(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rng.normal(size=(20, 30))
    member = rng.random(3000) < 0.5
    values = rng.normal(size=3000) + member
    (curve,) = load([folder / "a.report.json"]).sources[-1].roc
    assert curve.corners == 3001
    assert len(curve.points) < 900
    for rate, reached in curve.points:
        errors = round(rate * (~member).sum())
        hits = round(reached * member.sum())
        threshold = np.sort(values)[::-1][errors + hits - 1] if errors + hits else np.inf
        assert (values[~member] >= threshold).sum() == errors
        assert (values[member] >= threshold).sum() == hits
    rate, lower, upper = curve.band[len(curve.band) // 2]
    threshold = np.sort(values[~member])[::-1][round(rate * (~member).sum()) - 1]
    possible = [
        binomtest(int(k), int(member.sum())).proportion_ci(0.95, "exact")
        for k in range((values[member] >= threshold).sum(), (values[member] >= threshold).sum() + 12)
    ]
    assert any(lower == pytest.approx(p.low, abs=1e-9) and upper == pytest.approx(p.high, abs=1e-9) for p in possible)


def test_what_thinning_leaves_out_is_less_than_a_pixel(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rng.normal(size=(20, 30))
    member = rng.random(3000) < 0.5
    values = rng.normal(size=3000) + member
    (curve,) = load([folder / "a.report.json"]).sources[-1].roc
    order = np.argsort(-values)
    hits, errors = np.cumsum(member[order]) / member.sum(), np.cumsum(~member[order]) / (~member).sum()
    kept_x, kept_y = np.array(curve.points).T
    drawn = kept_y[np.searchsorted(kept_x, errors, side="right") - 1]
    visible = errors > 0
    run = np.maximum.accumulate(hits)  # within one false positive the curve rises: compare at its top
    top = np.array([run[errors == e].max() for e in errors])
    apart = np.abs(np.log10(np.maximum(drawn, 1e-4)) - np.log10(np.maximum(top, 1e-4)))[visible]
    assert apart.max() <= 4 * 4e-3  # decades; a picture of 270 units has 67 of them to a decade


def test_exposures_are_counted_by_whole_bits_of_scored_canaries(folder: Path) -> None:
    groups = load([folder / "a.report.json"]).sources[-1].exposures
    assert [(g.name, g.counts, g.included) for g in groups] == [
        ("included, 1 copy", (1, 1, *[0] * 8), True),
        ("included, 10 copies", (*[0] * 9, 1), True),
        ("left out", (1, *[0] * 9), False),
    ]


def test_released_tensors_are_measured_by_their_root_mean_square(folder: Path) -> None:
    tensors = {t.name: t for t in load([folder / "n.report.json"]).sources[-1].tensors}
    assert (tensors["w"].rms, tensors["w"].size) == (pytest.approx(3.0), 8)
    assert (tensors["b"].rms, tensors["b"].size) == (pytest.approx(0.5), 4)


def test_the_bound_of_one_gaussian_release_is_its_trade_off_curve() -> None:
    (curve,) = bounds_of(noised())
    height = dict(curve.points)
    rate = min(height, key=lambda r: abs(r - 0.01))
    # Dong, Roth and Su 2022: the best test has Phi(Phi^-1(rate) + mu), mu = 1 / noise multiplier.
    assert height[rate] == pytest.approx(norm.cdf(norm.ppf(rate) + 1 / 0.6))


def test_only_sound_bounds_are_drawn_and_heavy_ledgers_are_not_composed() -> None:
    (curve,) = bounds_of(trained())
    assert curve.label.startswith("dp-sgd")
    assert "composed" in curve.source
    report = trained()
    events = report.mechanism.events * 100  # type: ignore[union-attr]
    heavy = replace(report, mechanism=replace(report.mechanism, events=events))  # type: ignore[type-var]
    (light,) = bounds_of(heavy)
    assert "alone" in light.source
    height = dict(light.points)
    rate = min(height, key=lambda r: abs(r - 0.001))
    assert height[rate] == pytest.approx(np.exp(2) * rate + 1e-5)


def test_a_statement_has_both_digests_of_the_files_at_hand(folder: Path) -> None:
    import hashlib

    paths = [folder / "n.report.json"]
    (file,) = with_files(load(paths, drawn=False), paths).files
    assert file.digests["sha256"] == hashlib.sha256((folder / "n.safetensors").read_bytes()).hexdigest()
    assert f"blake3:{file.digests['blake3']}" == file_digest(folder / "n.safetensors")
    (folder / "n.safetensors").write_bytes(b"other")
    with pytest.raises(InputError, match="not the file that its report recorded"):
        with_files(load(paths, drawn=False), paths)
    (folder / "n.safetensors").unlink()
    (file,) = with_files(load(paths, drawn=False), paths).files
    assert set(file.digests) == {"blake3"}
