"""``retrain dp-sgd --target-unclipped-quantile`` and ``make_private``: reported, verified, forged, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.settings.adaptive_clipping import sum_noise_multiplier
from tests.cli.short_runs import dp_sgd, prepared, some_quick, verified_after
from tests.integrations.loops import Loop
from verify.run import read, verify

RECORDS, STEPS, BATCH = 30, 7, 6
ADAPTIVE = ["--target-unclipped-quantile", "0.5"]
OPTIONS = ["--noise-multiplier", "1", "--batch-size", str(BATCH), "--steps", str(STEPS), "--device", "cpu"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("adaptive"), RECORDS)


def call(start: Path, output: Path, *more: str) -> list[str]:
    return dp_sgd(start, output, "-q", *OPTIONS, *more)


@pytest.fixture(scope="module")
def trained(start: Path) -> Path:
    assert run(call(start, start / "out", *ADAPTIVE, "--clip-norm", "50")) == 0
    return start / "out.report.json"


def test_a_run_states_both_releases_and_is_verified(trained: Path) -> None:
    report = read_report(trained)
    assert report.mechanism == Ledger(events=(SampledGaussian(noise_multiplier=1, sample_rate=0.2, steps=STEPS),))
    stated = report.parameters
    assert stated["noise_multiplier"] == 1
    assert stated["unclipped_count_stddev"] == 2
    assert stated["sum_noise_multiplier"] == sum_noise_multiplier(1, 2)
    assert len(stated["clip_norms"]) == STEPS + 1
    assert stated["clip_norms"][0] == stated["clip_norm"] == 50
    (guarantee,) = report.guarantees
    assert guarantee.arithmetic is not None
    assert guarantee.arithmetic.coordinates == stated["released_numbers"]
    assert stated["released_numbers"] % STEPS == 0
    assert "unclipped count" in {assumption.name for assumption in guarantee.assumptions}
    assert run(["verify", str(trained), "-q"]) == 0


def _forgets_the_count(report: Any) -> None:
    """Both parameters and ledger claim the noise that the sum alone has, which gives a lower epsilon."""
    for holder in (report["parameters"], report["mechanism"]["events"][0]):
        holder["noise_multiplier"] = report["parameters"]["sum_noise_multiplier"]


def _more_noise_on_the_count(report: Any) -> None:
    report["parameters"]["unclipped_count_stddev"] *= 2


def _without(name: str) -> Callable[[Any], None]:
    return lambda report: report["parameters"].pop(name)


def _with(**changes: Any) -> Callable[[Any], None]:
    return lambda report: report["parameters"].update(changes)


def _without_the_assumption(report: Any) -> None:
    for guarantee in report["guarantees"]:
        guarantee["assumptions"] = [a for a in guarantee["assumptions"] if a["name"] != "unclipped count"]


def _without_the_last_norm(report: Any) -> None:
    report["parameters"]["clip_norms"].pop()


FORGERIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "the count's release is forgotten": (_forgets_the_count, "sum and count of a step together have"),
    "more noise on the count": (_more_noise_on_the_count, "sum and count of a step together have"),
    "no noise on the count": (_without("unclipped_count_stddev"), "its parameters lack unclipped_count_stddev"),
    "no noise on the sum": (_without("sum_noise_multiplier"), "its parameters lack sum_noise_multiplier"),
    "no path": (_without("clip_norms"), "its parameters lack clip_norms"),
    "a path of fewer steps": (_without_the_last_norm, "number of clip_norms is 7"),
    "another first norm": (_with(clip_norm=5.0), "first of clip_norms is 50"),
    "a norm of nothing": (_with(clip_norms=[50.0] + STEPS * [0.0]), "clip_norms holds a number"),
    "a path without noise": (_with(clip_norms=(STEPS + 1) * [50.0]), "the noise reported is not in clip_norms"),
    "clipping by layers": (_with(clipping="per-layer"), "its clipping is per-layer"),
    "nothing said of the count": (_without_the_assumption, "rests on the assumption 'unclipped count'"),
}
#: Those that are tried in the quick suite.
_QUICK = ("the count's release is forgotten", "more noise on the count", "a path without noise")


@pytest.mark.forged("each is a lie about the second release of a step")
@pytest.mark.parametrize("name", some_quick(list(FORGERIES), _QUICK))
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    forge, message = FORGERIES[name]
    assert verified_after(trained, forge) == 1
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ([*ADAPTIVE, "--bands", "3"], "--bands correlates the noise of steps, which needs one clip norm for all"),
        ([*ADAPTIVE, "--clipping", "automatic"], "--clipping automatic does not clip whole gradients"),
        ([*ADAPTIVE, "--unclipped-count-stddev", "0.5"], "--unclipped-count-stddev is 0.5; with a noise multiplier of"),
        (["--unclipped-count-stddev", "5"], "--unclipped-count-stddev is a setting of adaptive clipping; give"),
        (["--target-unclipped-quantile", "1"], "--target-unclipped-quantile is 1; it must be above 0 and below 1"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], what: str
) -> None:
    assert run(call(start, tmp_path / "out", *more)) == 2
    assert what in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.forged("another noise than the run's")
def test_how_the_weights_moved_shows_the_noise_of_every_clip_norm(start: Path, tmp_path: Path) -> None:
    more = ["--optimizer", "sgd", "--noise-multiplier", "20", "--steps", "20", "--clip-norm", "30"]
    assert run(call(start, tmp_path / "out", *ADAPTIVE, "--clip-norm-learning-rate", "0.5", *more)) == 0
    path = tmp_path / "out.report.json"
    report = json.loads(path.read_text())
    norms = report["parameters"]["clip_norms"]
    found = {"as it was": _of_weights(path)}
    forged = tmp_path / "forged.report.json"
    for name, change in (
        ("twice the noise on the sum", {"sum_noise_multiplier": 2 * report["parameters"]["sum_noise_multiplier"]}),
        ("half the noise on the sum", {"sum_noise_multiplier": report["parameters"]["sum_noise_multiplier"] / 2}),
        ("a clip norm that stayed", {"clip_norms": [norms[0]] * len(norms)}),
    ):
        forged.write_text(json.dumps(report | {"parameters": report["parameters"] | change}))
        found[name] = _of_weights(forged)
    assert max(norms) / min(norms) > 3
    assert found.pop("as it was") is Outcome.CONSISTENT
    assert set(found.values()) == {Outcome.REFUTED}


def _of_weights(path: Path) -> Outcome:
    found = {verdict.outcome for verdict in verify(path, read(path)).verdicts if verdict.subject == "weights"}
    (worst,) = {Outcome.REFUTED} & found or found
    return worst


@pytest.mark.slow
def test_gradient_canaries_and_balls_and_bins_go_with_it(start: Path, tmp_path: Path) -> None:
    for name, more in (
        ("canaries", ["--gradient-canaries", "20"]),
        ("bins", ["--batches", "balls-and-bins"]),
        ("two passes", ["--clipping-passes", "2", "--micro-examples", "2"]),
    ):
        assert run(call(start, tmp_path / name, *ADAPTIVE, *more)) == 0, name
        assert run(["verify", str(tmp_path / f"{name}.report.json"), "-q"]) == 0, name
    evidence = tmp_path / "canaries.gradient-canaries.json"
    observed = json.loads(evidence.read_text())["every_step"]
    assert len(observed) == 20


@pytest.mark.slow
def test_an_epsilon_pays_for_both_releases(start: Path, tmp_path: Path) -> None:
    arguments = call(start, tmp_path / "out", *ADAPTIVE)
    place = arguments.index("--noise-multiplier")
    arguments[place : place + 2] = ["--epsilon", "3"]
    assert run(arguments) == 0
    report = read_report(tmp_path / "out.report.json")
    (guarantee,) = report.guarantees
    assert guarantee.epsilon is not None
    assert 2.99 < guarantee.epsilon <= 3
    assert report.parameters["sum_noise_multiplier"] > 1.01 * report.parameters["noise_multiplier"]
    assert run(["verify", str(tmp_path / "out.report.json"), "-q"]) == 0


def test_a_loop_is_refused_less_noise_on_the_count_than_its_budget() -> None:
    with pytest.raises(CommandError, match="exceeds the budget"):
        Loop(noise_multiplier=1.0, target_unclipped_quantile=0.5, unclipped_count_stddev=0.4)
    with pytest.raises(CommandError, match="needs flat clipping"):
        Loop(noise_multiplier=1.0, target_unclipped_quantile=0.5, clipping="automatic")


def test_a_loop_of_ones_own_follows_the_quantile_too(tmp_path: Path) -> None:
    loop = Loop(noise_multiplier=1.0, clip_norm=40.0, target_unclipped_quantile=0.5)
    loop.train(epochs=2)
    norms = loop.private.clip_norms
    assert len(norms) == loop.private.steps_begun + 1
    assert norms[-1] < norms[0]
    path = loop.save(tmp_path / "model.safetensors")
    report = loop.private.report(path)
    assert report.parameters["clip_norms"] == list(norms)
    found = privctl.verify(path)
    assert found.exit_code is ExitCode.OK
    data = json.loads((tmp_path / "model.report.json").read_text())
    _forgets_the_count(data)
    (tmp_path / "forged.report.json").write_text(json.dumps(data))
    assert run(["verify", str(tmp_path / "forged.report.json"), "-q"]) == 1
