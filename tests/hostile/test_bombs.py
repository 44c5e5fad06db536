"""Bombs: files made to take all time or memory. Twice the size takes about twice the work; memory stays bounded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.data import packed
from privctl.data import records as readers
from privctl.domain.errors import InputError
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import ClippedTraining, Optimizer, Regime
from privctl.domain.report import Artifact
from privctl.domain.verdict import Outcome
from privctl.gate.judge import judge
from privctl.gate.policy import read_policy
from privctl.gate.report_set import MOST_GIVEN
from privctl.noise.selection import select
from privctl.reports.files import read_report
from privctl.storage import digest as digests
from privctl.storage.digest import bytes_digest, file_digest
from privctl.storage.header import elements_of
from privctl.storage.reader import SafetensorsFile, open_checkpoint
from tests.few import few
from tests.gate.made import PROVED, auc, audit, making
from tests.gate.made import weights as weights_of
from tests.hostile.bombs import (
    caged,
    doubling_chain,
    edited,
    equal_tensors,
    facts,
    huge_shapes,
    many_lines,
    one_line,
    repeated_parent,
)
from tests.work import calls
from verify.files.integrity import check_chain
from verify.recompute.sensitivity import TooManyStepsError, sensitivity
from verify.run import verify

NOW = datetime(2030, 1, 10, 12, tzinfo=UTC)
#: More than linear work shows as 4 when the size doubles; caches and fixed parts make linear work a little less than 2.
LINEAR = 2.4


def test_work_is_seen_to_be_quadratic_where_it_is() -> None:
    def pairs(count: int) -> int:
        return sum(max(i, j) > 0 for i in range(count) for j in range(count))

    assert calls(lambda: pairs(80)) > 3.5 * calls(lambda: pairs(40))
    assert calls(lambda: sum(max(i, 1) for i in range(4000))) < 2.1 * calls(lambda: sum(max(i, 1) for i in range(2000)))


@pytest.mark.slow
def test_the_peak_of_a_command_is_its_own(tmp_path: Path) -> None:
    held = b"x" * (200 << 20)
    small = caged(tmp_path, "--version")
    large = caged(
        tmp_path, "secrets", "scan", one_line(tmp_path / "d.jsonl.gz", 80 << 20), "-o", tmp_path / "book.jsonl"
    )
    del held
    assert (small.code, large.code) == (0, 3)
    assert 0 < small.peak < 100 << 20
    assert large.peak > small.peak + (60 << 20)


# Headers.


def test_a_product_of_many_dimensions_is_given_up_early() -> None:
    class Counted(int):
        seen = 0

        def __rmul__(self, other: int) -> int:
            Counted.seen += 1
            return int(self) * other

    assert elements_of([Counted(2**62)] * 100_000) is None
    assert Counted.seen == 2
    assert elements_of([0, *[2**62] * 100_000]) == 0
    assert elements_of([]) == 1
    assert elements_of([3, 5, 2**58]) == 15 * 2**58


def test_a_header_of_huge_shapes(tmp_path: Path) -> None:
    found = caged(tmp_path, "inspect", huge_shapes(tmp_path / "m.safetensors", 20_000_000), memory=1 << 30, seconds=30)
    assert found.code == 3, found.said
    assert "more than any file can hold" in found.sentence


# Tensors that look alike.


class Reads:
    """How often the bytes of tensors are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = SafetensorsFile.read_into

        def counted(file: SafetensorsFile, position: int, buffer: memoryview) -> None:
            self.count += 1
            real(file, position, buffer)

        monkeypatch.setattr(SafetensorsFile, "read_into", counted)


@pytest.mark.parametrize("excluded", [(), ("t00001?",)])
def test_many_equal_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excluded: tuple[str, ...]) -> None:
    reads = Reads(monkeypatch)
    for count in (300, 600):
        reads.count = 0
        with open_checkpoint(equal_tensors(tmp_path / "m.safetensors", count)) as checkpoint:
            chosen = select(checkpoint, exclude=excluded)
        assert reads.count <= 4 * count
        assert not chosen.tied
        assert len(set(chosen.streams.values())) == len(chosen.streams)
        assert any(a.name == "separate-tensors" for a in chosen.assumptions)


# Long trainings.


@pytest.mark.parametrize(
    ("optimizer", "more"), [(Optimizer.SGD, {}), (Optimizer.MOMENTUM, {"momentum": 0.9}), (Optimizer.ADAM, {})]
)
def test_sums_over_steps_are_those_of_a_plain_loop(optimizer: Optimizer, more: dict[str, float]) -> None:
    training = ClippedTraining(
        epochs=700, learning_rate=0.01, clip_norm=2, dataset_size=1000, batch_size=2, optimizer=optimizer,
        weight_decay=1e-3, **more,
    )  # fmt: skip
    assert training.total_steps > 1 << 18, "more than one block"
    keep, total = 1 - 0.01 * 1e-3, 0.0
    series = 0.0
    for step in range(1, training.total_steps + 1):
        if optimizer is Optimizer.SGD:
            length = 0.01 * 4 / 2 if step == 1 else 2 * 0.01 * 2
        elif optimizer is Optimizer.MOMENTUM:
            length = 2 * 0.01 * 2 * (1 - 0.9**step) / (1 - 0.9)
        else:
            series += (0.9**2 / 0.999) ** (step - 1)
            second = (1 - 0.999**step) / (1 - 0.999)
            length = 2 * 0.01 * 3 * (1 - 0.9) / (1 - 0.9**step) * (second * series) ** 0.5
        total = keep * total + length
    assert sensitivity(training, Regime.NONCONVEX, Adjacency.REPLACE_ONE, 9) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(
    ("regime", "more"),
    [
        (Regime.SMOOTH, {"dataset_size": 98, "steps": 20 * 10**12 - 1}),
        (Regime.NONCONVEX, {"optimizer": Optimizer.ADAM, "beta2": 1 - 1e-12}),
        (Regime.NONCONVEX, {"optimizer": Optimizer.ADAM, "beta1": 0.9, "beta2": 0.81}),
    ],
)
def test_trainings_too_long_to_follow_are_said_to_be(regime: Regime, more: dict[str, Any]) -> None:
    """Epochs of different lengths, and sums whose terms do not settle."""
    training = ClippedTraining(
        **{"epochs": 10**12, "learning_rate": 0.1, "clip_norm": 1, "dataset_size": 100, "batch_size": 5, **more},
        smoothness=1,
    )
    with pytest.raises(TooManyStepsError, match="are not"):
        sensitivity(training, regime, Adjacency.ZERO_OUT, 9)


#: Of the calibrated noise too much would be needed.
PUBLISHED = ("--calibration", "published")


@pytest.mark.slow
def test_noise_for_millions_of_epochs(tmp_path: Path) -> None:
    """Seconds of start-up included; the loop over 40 million steps took minutes."""
    losses = ("--smoothness", "1e-7", "--strong-convexity", "1e-8")
    calls: list[tuple[str | Path, ...]] = []
    for name, epochs, more in (
        ("sgd", 2_000_000, ()),
        ("momentum", 10**12, ("--optimizer", "momentum", "--momentum", "0.9")),
        ("adam", 10**12, ("--optimizer", "adam")),
    ):
        path = equal_tensors(tmp_path / f"{name}.safetensors", 2)
        calls.append(("noise", path, *facts(epochs=epochs), *losses, *more, *PUBLISHED, "-q"))
        calls.append(("verify", tmp_path / f"{name}.noised.report.json", "--json"))
    found = caged(tmp_path, *calls[0], then=calls[1:], memory=2 << 30, seconds=50)
    assert found.codes == (0,) * 6, found.said


def test_verifying_millions_of_epochs(tmp_path: Path) -> None:
    more = ("--smoothness", "1", "--strong-convexity", "0.1")
    assert run(["noise", str(equal_tensors(tmp_path / "m.safetensors", 2)), *facts(), *more, *PUBLISHED, "-q"]) == 0
    report, other = tmp_path / "m.noised.report.json", tmp_path / "other.report.json"
    shutil.copy(report, other)
    where = ["mechanism", "training", "epochs"]
    calls = [("verify", edited(path, where, many)) for path, many in ((report, 2_000_000), (other, 10**12))]
    found = caged(tmp_path, *calls[0], then=calls[1:], memory=2 << 30, seconds=60)
    assert len(found.codes) == 2, found.said
    assert set(found.codes) <= {1, 3}, found.said
    assert "internal" not in found.said
    assert 0 < found.peak < 256 << 20


# Chains of reports.


@pytest.mark.slow
def test_one_parent_named_many_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privctl.reports import chain

    read: list[Path] = []
    real = chain.read_named_bytes
    monkeypatch.setattr(chain, "read_named_bytes", lambda path: (read.append(path), real(path))[1])
    links = check_chain(repeated_parent(tmp_path, 20_000), {})
    assert [link.path.name for link in links] == ["child.report.json", "parent.report.json"]
    assert len(read) == 2
    found = caged(tmp_path, "report", tmp_path / "child.report.json", "-o", "-", memory=1 << 30, seconds=40)
    assert found.code == 0, found.said


def test_a_chain_with_exponentially_many_ways(tmp_path: Path) -> None:
    links = check_chain(doubling_chain(tmp_path, 60), {})
    assert len(links) == 1 + 2 * 59
    found = caged(tmp_path, "verify", tmp_path / "r59.report.json", memory=2 << 30)
    assert found.code == 1, found.said


def test_a_chain_longer_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 30
    monkeypatch.setattr("verify.files.integrity.MOST_REPORTS", most)
    last = making(tmp_path / "0.report.json", PROVED, name="m0")
    for i in range(1, most + 10):
        last = making(tmp_path / f"{i}.report.json", PROVED, name=f"m{i}", parents=[last])
    links = check_chain(last, {})
    assert len(links) == most + 1
    assert f"more than {most} reports" in links[-1].verdicts[0].reason


def test_a_file_named_many_times_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import privctl.storage.digest as digest

    report = making(tmp_path / "m.report.json", PROVED)
    (tmp_path / "big").write_bytes(bytes(1000))
    data = json.loads(report.read_text())
    other = {"role": "data", "path": "big", "digest": "blake3:00", "bytes": 1000}
    for field in ("inputs", "outputs"):
        data[field] += [other] * 1000
    report.write_text(json.dumps(data))
    read: list[Path] = []
    real = digest.file_digest
    monkeypatch.setattr(digest, "file_digest", lambda path, *more: (read.append(path), real(path, *more))[1])
    assert run(["verify", str(report), "-q"]) == 1
    assert [path.name for path in read].count("big") == 1


# The gate.


def separate(folder: Path, count: int) -> list[Path]:
    return [making(folder / f"{i}.report.json", PROVED, name=f"m{i}") for i in range(count)]


def audits(folder: Path, count: int) -> list[Path]:
    created = ("2030-01-09T00:{:02}:{:02}Z".format(*divmod(i, 60)) for i in range(count))
    reports = [audit(folder / f"{i}.report.json", auc(0.5, 0.4, 0.6), created=when) for i, when in enumerate(created)]
    return [making(folder / "m.report.json", PROVED), *reports]


def chained(folder: Path, count: int) -> list[Path]:
    reports = [making(folder / "0.report.json", PROVED, name="m0")]
    for i in range(1, count):
        read = [weights_of(f"m{i - 1}")]
        reports.append(
            making(folder / f"{i}.report.json", name=f"m{i}", step="noise", inputs=read, parents=reports[-1:])
        )
    return reports


def rivals(folder: Path, count: int) -> list[Path]:
    """Reports that all say that they made the same weights."""
    return [
        making(folder / f"{i}.report.json", PROVED, created=f"2030-01-09T00:00:{i / 1000:06.3f}Z") for i in range(count)
    ]


@pytest.mark.parametrize("make", few([chained, rivals, separate, audits], 0))
def test_the_gates_work_grows_with_the_reports(tmp_path: Path, make: Callable[[Path, int], list[Path]]) -> None:
    asked = {"max_epsilon": "8", "max_auc": "0.7", "required_steps": "verify,audit", "max_age_days": "30"}
    policy = read_policy(None, asked, {}, {})
    done = []
    for count in (60, 120):
        folder = tmp_path / str(count)
        folder.mkdir()
        paths = make(folder, count)
        judge(paths[:1], policy, None, NOW)
        done.append(calls(lambda paths=paths: judge(paths, policy, None, NOW)))
    assert done[1] < LINEAR * done[0], done


def test_more_reports_than_are_read(tmp_path: Path) -> None:
    path = making(tmp_path / "m.report.json", PROVED)
    judgement = judge(
        [path] * (MOST_GIVEN + 1), read_policy(None, {"max_epsilon": "8", "recompute": "false"}, {}, {}), None, NOW
    )
    assert judgement.outcome is GateOutcome.INCONCLUSIVE
    assert any(f"at most {MOST_GIVEN} are read" in finding.message for finding in judgement.findings)


def test_a_missing_parent_named_many_times(tmp_path: Path) -> None:
    path = repeated_parent(tmp_path, 20_000)
    (tmp_path / "parent.report.json").unlink()
    judgement = judge([path], read_policy(None, {"max_epsilon": "8"}, {}, {}), None, NOW)
    assert len([finding for finding in judgement.findings if finding.rule == "chain"]) == 1


def test_a_file_of_another_size_than_recorded_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte takes no disk and would take an hour to digest."""
    content = b"much less than this was recorded"
    names = ("as-recorded", "larger", "larger-output")
    for name in names:
        (tmp_path / name).write_bytes(content)
    named = [Artifact(role="data", path=name, digest=bytes_digest(content), bytes=len(content)) for name in names]
    larger = [replace(each, bytes=len(content) - 1) for each in named]
    inputs, outputs = (named[0], larger[1]), (weights_of("m"), replace(larger[2], role="scores"))
    path = making(tmp_path / "m.report.json", PROVED, inputs=inputs, outputs=outputs)
    read: list[str] = []

    def message_for(path: Path, *more: Any) -> str:
        read.append(path.name)
        return file_digest(path, *more)

    monkeypatch.setattr(digests, "file_digest", message_for)
    found = {verdict.subject: verdict.outcome for verdict in verify(path, read_report(path)).verdicts}
    assert read == ["as-recorded"]
    assert [found[name] for name in names] == [Outcome.PROVED, Outcome.REFUTED, Outcome.REFUTED]


# Data.


@pytest.mark.parametrize("make", [one_line, pytest.param(many_lines, marks=pytest.mark.slow)])
def test_gzip_files_that_unpack_to_gigabytes(tmp_path: Path, make: Callable[[Path, int], Path]) -> None:
    """A file of some MB; one of a single line is refused as soon as the line is too long."""
    path = make(tmp_path / "d.jsonl.gz", 3 << 30)
    assert path.stat().st_size < 16 << 20
    found = caged(tmp_path, "secrets", "scan", path, "-o", tmp_path / "book.jsonl", memory=1 << 30, seconds=100)
    assert found.code == 3, found.said
    assert ("more than 64 MiB" if make is one_line else "unpacks to more than") in found.sentence
    assert not (tmp_path / "book.jsonl").exists()
    assert 0 < found.peak < 256 << 20


def test_what_a_gzip_file_may_unpack_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many_lines(tmp_path / "d.jsonl.gz", 1 << 20)
    assert path.stat().st_size * packed.MOST_RATIO < 1 << 20
    records = sum(1 for _ in readers.read_records(path))
    monkeypatch.setattr(packed, "MOST_UNPACKED", 1 << 18)
    with pytest.raises(InputError, match="unpacks to more than .* 100 times its size; unpack it"):
        list(readers.read_records(path))
    path.with_suffix("").write_bytes(b'{"text": "the same again and again"}\n' * records)
    assert sum(1 for _ in readers.read_records(path.with_suffix(""))) == records, "what is not packed has no bound"


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.csv"])
def test_the_bounds_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import gzip

    from privctl.data.texts import iter_texts

    monkeypatch.setattr(packed, "LONGEST_LINE", 1000)
    path = tmp_path / name
    opened: Callable[..., object] = gzip.open if name.endswith(".gz") else open

    def written(length: int) -> Path:
        head, tail = ("text\n", "\n") if name == "d.csv" else ('{"text": "', '"}\n')
        with opened(path, "wt") as stream:  # type: ignore[attr-defined]
            stream.write(head + "a" * (length - len(tail) - (0 if name == "d.csv" else len(head))) + tail)
        return path

    assert len(list(iter_texts(written(1000)))) == 1
    with pytest.raises(InputError, match=r"line [12] has more than .* MiB"):
        list(iter_texts(written(1001)))
