"""``privctl account``: the table, its honesty, other mechanisms, ledgers, plots and mistakes."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.events import Ledger, SampledGaussian, SignBits
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, RiskMeasure, Status
from privctl.domain.report import PrivacyReport
from privctl.reports.codec import decode

POISSON = ["--delta", "1e-5", "--sample-rate", "0.01", "--steps", "1000", "--no-peers"]


def report_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> PrivacyReport:
    assert run(["account", *arguments, "--json"]) == 0
    return decode(capsys.readouterr().out, "stdout")


def named(report: PrivacyReport) -> dict[str, Guarantee]:
    return {guarantee.name: guarantee for guarantee in report.guarantees}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[PrivacyReport, str]:
    """The row of the published table, rate 0.01, 1000 steps, delta 1e-5, epsilon 1: its report, and its output."""
    path = tmp_path_factory.mktemp("asked") / "a.json"
    with redirect_stdout(StringIO()) as printed:
        assert run(["account", "--epsilon", "1", *POISSON, "-o", str(path)]) == 0
    return decode(path.read_text(), "file"), printed.getvalue()


def test_noise_for_a_target(asked: tuple[PrivacyReport, str]) -> None:
    report, _ = asked
    found = named(report)
    expected = {
        "basic (naive) composition": 37.953152,
        "poster: naive": 52.988025,
        "moments / Renyi DP": 1.513122,
        "privacy loss distribution": 1.414631,
        "GDP: estimate, not a bound": 1.358992,
    }
    for name, noise in expected.items():
        assert found[name].noise_multiplier == pytest.approx(noise, rel=3e-5)
    tight = found["privacy loss distribution"]
    assert tight.epsilon is not None
    assert 0.9999 < tight.epsilon <= 1
    assert tight.status is Status.CONDITIONAL
    assert tight.adjacency is Adjacency.ADD_OR_REMOVE
    assert {a.name for a in tight.assumptions} == {"contribution", "poisson batches"}
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert event.noise_multiplier == tight.noise_multiplier


def test_the_estimate_is_refuted_where_its_noise_is_too_small(asked: tuple[PrivacyReport, str]) -> None:
    found = named(asked[0])
    estimate = found["GDP: estimate, not a bound"]
    assert estimate.status is Status.REFUTED
    assert estimate.floor is not None
    assert estimate.floor > 1.01  # the certified lower bound of another accountant is 1.012647
    assert estimate.follows is not None
    assert estimate.follows >= 1.0626
    assert found["poster: naive"].status is Status.CLAIMED


def test_epsilon_for_noise(capsys: pytest.CaptureFixture[str]) -> None:
    found = named(report_of(["--noise-multiplier", "1", *POISSON], capsys))
    tight = found["privacy loss distribution"]
    assert tight.epsilon == pytest.approx(1.8282436, rel=5e-5)
    assert tight.floor is not None
    assert tight.epsilon is not None
    assert 1.82 < tight.floor <= tight.epsilon
    assert found["GDP: estimate, not a bound"].epsilon == pytest.approx(1.6177118, abs=1e-6)
    assert found["GDP: estimate, not a bound"].status is Status.REFUTED


def test_half_the_noise_is_not_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    epsilon = named(report_of(["--noise-multiplier", "0.5", *POISSON], capsys))["privacy loss distribution"].epsilon
    assert epsilon is not None
    assert epsilon > 5


def test_rate_and_steps_from_the_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    facts = ["--dataset-size", "60000", "--batch-size", "256", "--epochs", "60", "--delta", "1e-5", "--no-peers"]
    report = report_of(["--noise-multiplier", "1.1", *facts], capsys)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    assert (event.sample_rate, event.steps) == (256 / 60000, 14063)
    assert named(report)["privacy loss distribution"].epsilon == pytest.approx(2.3817, abs=2e-3)


@pytest.mark.parametrize(
    ("batches", "proved", "adjacency"),
    [
        ("shuffled", "passes, not amplified", Adjacency.ZERO_OUT),
        ("fixed-size", "drawing a fixed number", Adjacency.REPLACE_ONE),
    ],
)
def test_what_is_proved_for_poisson_only_says_so(
    batches: str, proved: str, adjacency: Adjacency, capsys: pytest.CaptureFixture[str]
) -> None:
    found = named(report_of(["--noise-multiplier", "1", "--batches", batches, *POISSON], capsys))
    poisson = found["privacy loss distribution"]
    assert poisson.status is Status.CLAIMED
    assert batches in poisson.note
    assert found[proved].status is Status.CONDITIONAL
    assert found[proved].adjacency is adjacency
    assert found[proved].epsilon is not None
    assert poisson.epsilon is not None
    assert found[proved].epsilon > poisson.epsilon
    assert poisson.follows == pytest.approx(found[proved].epsilon, rel=2e-3)


def test_what_is_left_to_an_attacker(capsys: pytest.CaptureFixture[str]) -> None:
    """One Gaussian at mu = 1: 2 Phi(1/2) - 1 and Phi(1 + Phi^-1(rate)), at 30 digits elsewhere."""
    found = named(report_of(["--noise-multiplier", "1", "--delta", "1e-6", "--prior", "0.1", "--no-peers"], capsys))
    tight = found["privacy loss distribution"]
    risks = {(risk.measure, risk.at): risk.bound for risk in tight.risks}
    assert risks[RiskMeasure.ADVANTAGE, None] == pytest.approx(0.38292492254802620, rel=1e-9)
    assert risks[RiskMeasure.TRUE_POSITIVE_RATE, 0.01] == pytest.approx(0.0923622480736939, rel=1e-9)
    assert risks[RiskMeasure.POSTERIOR, 0.1] == pytest.approx(0.389143691645361, rel=1e-9)
    assert tight.epsilon == pytest.approx(4.8865541174622119964, rel=1e-9)


def test_account_plans_ferret(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mechanism", "ferret", "--groups", "2", "--sample-rate", "0.005", "--steps", "1000"]
    report = report_of([*arguments, "--epsilon", "0.5", "--delta", "1e-5"], capsys)
    assert isinstance(report.mechanism, SignBits)
    assert report.mechanism.fire_probability == pytest.approx(0.07213475204444816, rel=1e-12)
    average, poisson, shuffled = report.guarantees
    assert average.notion is Notion.MUTUAL_INFORMATION
    assert average.epsilon == pytest.approx(0.5)
    assert [round(risk.bound, 6) for risk in average.risks] == [0.903623, 0.995356]
    assert poisson.status is shuffled.status is Status.REFUTED
    assert poisson.epsilon is None
    assert "0.501211" in poisson.note
    assert report.parameters["found"] == {"fire probability": report.mechanism.fire_probability}
    small = ["--fire-probability", "1e-9", "--groups", "1", "--steps", "1", "--delta", "1e-5"]
    assert run(["account", "--mechanism", "ferret", *small]) == 0
    assert "not refuted" in capsys.readouterr().out
    assert "0.527013" in shuffled.note
    assert run(["account", *arguments, "--epsilon", "7", "--delta", "1e-5"]) == 2
    assert "6.93147" in capsys.readouterr().err


def test_account_plans_for_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mechanism", "secret", "--record", "0.005x10", "--prior", "0.01", "--steps", "500"]
    report = report_of([*arguments, "--posterior", "0.2", "--delta", "1e-5"], capsys)
    fano, curve = report.guarantees
    assert fano.noise_multiplier == pytest.approx(1.3779436045, rel=1e-9)
    assert fano.risks[0].bound == pytest.approx(0.2, abs=1e-9)
    assert curve.risks[0].bound == pytest.approx(0.0851, abs=5e-4)


def test_a_secret_takes_its_steps_from_the_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    secret = [
        "--mechanism",
        "secret",
        "--posterior",
        "0.1",
        "--prior",
        "0.001",
        "--record",
        "0.01x50",
        "--delta",
        "1e-5",
    ]
    facts = ["--dataset-size", "50000", "--batch-size", "500", "--epochs", "20"]
    by_facts, by_steps = (report_of([*secret, *more], capsys) for more in (facts, ["--steps", "2000"]))
    assert by_facts.guarantees[0].noise_multiplier == by_steps.guarantees[0].noise_multiplier
    assert by_facts.guarantees[0].noise_multiplier == pytest.approx(26.12, abs=0.01)


def test_events_of_a_secret_and_of_records_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise for one record says nothing of a secret that lies in fifty."""
    path = tmp_path / "ledger.json"
    secret = {"type": "secret-mixture", "probabilities": [0.01] * 50, "noise_multiplier": 20, "steps": 10}
    record = {"type": "sampled-gaussian", "noise_multiplier": 1, "sample_rate": 0.01, "steps": 1000}
    path.write_text(json.dumps([record, secret]))
    assert run(["account", "--ledger", str(path), "--delta", "1e-5"]) == 2
    assert "compose only with each other" in capsys.readouterr().err


def test_sampled_laplace_says_that_its_batches_are_poisson(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(
        ["--mechanism", "laplace", "--scale", "3", "--steps", "9", "--sample-rate", "0.1", "--delta", "1e-5"], capsys
    )
    assert "poisson batches" in {a.name for a in report.guarantees[0].assumptions}


def test_the_report_says_only_what_was_asked_and_which_row_to_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(["--epsilon", "2", "--delta", "1e-5", "--method", "rdp", "--no-peers"], capsys)
    assert {"epsilon", "delta", "methods", "rely_on", "found", "no_peers"} == set(report.parameters)
    assert report.parameters["rely_on"] == "pld"
    assert report.parameters["found"] == {
        "noise multiplier": named(report)["privacy loss distribution"].noise_multiplier
    }


def test_passes_are_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty passes of 98 short and long batches, not twenty-one; there the poster's sum over passes is a theorem."""
    facts = ["--dataset-size", "50000", "--batch-size", "512", "--epochs", "20", "--delta", "1e-5", "--no-peers"]
    found = named(report_of(["--epsilon", "0.5", "--batches", "shuffled", *facts], capsys))
    # sigma = sqrt(20) / mu with delta(0.5; mu) = 1e-5.
    assert found["passes, not amplified"].noise_multiplier == pytest.approx(31.45, abs=0.01)
    assert found["poster: naive"].status is Status.CONDITIONAL


def test_another_programs_number_is_not_vouched_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("privctl.plan.peers.is_installed", lambda name: name == "opacus")
    monkeypatch.setattr("privctl.plan.peers.opacus_prv_epsilon", lambda *_: 1.7)
    report = report_of(["--noise-multiplier", "1", *POISSON[:-1], "--method", "opacus-prv"], capsys)
    assert named(report)["Opacus PRV"].status is Status.REFUTED
    monkeypatch.setattr("privctl.plan.peers.opacus_prv_epsilon", lambda *_: 1.84)
    report = report_of(["--noise-multiplier", "1", *POISSON[:-1], "--method", "opacus-prv"], capsys)
    assert named(report)["Opacus PRV"].status is Status.CLAIMED


@pytest.mark.parametrize("bits", [10**6 + 1, 10**8, 10**12])
def test_too_many_bits_take_no_memory(
    bits: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> None:
        raise AssertionError("probabilities of that many bits were asked for")

    monkeypatch.setattr("privctl.accounting.events.randomized_response.randomized_response", taken)
    call = ["account", "--mechanism", "randomized-response", "--bit-epsilon", "0.01", "--delta", "1e-5"]
    assert run([*call, "--bits", str(bits)]) == 2
    assert f"--bits is {bits}; at most 1,000,000 bits a step are offered" in capsys.readouterr().err


def test_laplace_and_randomized_response(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "--mechanism", "laplace", "--epsilon", "2", "--steps", "10", "--delta", "1e-6"]) == 0
    assert "scale 4.99" in capsys.readouterr().out
    bits = ["--mechanism", "randomized-response", "--steps", "1000", "--sample-rate", "0.005", "--delta", "1e-5"]
    report = report_of([*bits, "--bit-epsilon", "1"], capsys)
    # Each order exactly, by binomial sums at 50 digits; the three-point pair would give 0.72041534.
    assert named(report)["privacy loss distribution"].epsilon == pytest.approx(0.59794, abs=6e-5)


def test_account_reads_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger.json"
    events = [
        {"type": "sampled-gaussian", "noise_multiplier": 1, "sample_rate": 0.02048, "steps": 2940},
        {"type": "sampled-gaussian", "noise_multiplier": 0.5, "sample_rate": 0.02048, "steps": 30},
    ]
    path.write_text(json.dumps(events))
    report = report_of(["--ledger", str(path), "--delta", "1e-5"], capsys)
    assert named(report)["privacy loss distribution"].epsilon == pytest.approx(9.73455927, rel=5e-5)
    for content, word in (("[]", "no events"), ("{}", "a list"), ('[{"type": "x"}]', "one of"), ("[", "JSON")):
        path.write_text(content)
        assert run(["account", "--ledger", str(path), "--delta", "1e-5"]) == 3
        assert word in capsys.readouterr().err
    path.write_text(json.dumps([{"type": "laplace", "scale": 0}]))
    assert run(["account", "--ledger", str(path), "--delta", "1e-5"]) == 3
    assert "scale is 0" in capsys.readouterr().err


def test_plot_and_report_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, output = tmp_path / "plan.svg", tmp_path / "plan.json"
    call = ["account", "--noise-multiplier", "1", *POISSON, "-o", str(output), "--method", "rdp", "--plot"]
    assert run([*call, str(plot)]) == 0
    assert plot.read_bytes().startswith(b"<?xml")
    assert {g.name for g in decode(output.read_text(), "file").guarantees} == {
        "moments / Renyi DP",
        "privacy loss distribution",
    }
    before = plot.read_bytes(), output.read_bytes()
    assert run([*call, str(plot)]) == 2
    assert "exists" in capsys.readouterr().err
    assert (plot.read_bytes(), output.read_bytes()) == before


def test_the_text_shows_everything_a_reader_needs(asked: tuple[PrivacyReport, str]) -> None:
    _, text = asked
    for words in ("estimate, not a bound", "NOT ESTABLISHED", "Dong, Long and Su", "refuted", "asserted", "advantage"):
        assert words in text
    table = text.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "1", "--delta", "1"], "--delta is 1"),
        (["--epsilon", "1", "--delta", "0"], "--delta is 0"),
        (["--epsilon", "1", "--delta", "nan"], "--delta is nan"),
        (["--epsilon", "1"], "--delta is missing"),
        (["--delta", "1e-5"], "--noise-multiplier"),
        (["--epsilon", "1", "--noise-multiplier", "1", "--delta", "1e-5"], "one of"),
        (["--epsilon", "-1", "--delta", "1e-5"], "epsilon is -1"),
        (["--epsilon", "nan", "--delta", "1e-5"], "epsilon is nan"),
        (["--noise-multiplier", "0", "--delta", "1e-5"], "--noise-multiplier is 0"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--sample-rate", "1.5"], "--sample-rate is 1.5"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--steps", "0"], "steps is 0"),
        (["--epsilon", "1", "--delta", "1e-5", "--batch-size", "10"], "--dataset-size is missing"),
        (
            ["--epsilon", "1", "--delta", "1e-5", "--batch-size", "9", "--dataset-size", "5", "--epochs", "1"],
            "exceeds --dataset-size",
        ),
        (
            ["--epsilon", "1", "--delta", "1e-5", "--sample-rate", "0"],
            "--sample-rate is 0; it must be above 0 and at most 1",
        ),
        (["--epsilon", "1", "--delta", "1e-5", "--plot", "plan.pdf"], ".svg nor in .png"),
        (["--epsilon", "1", "--delta", "1e-5", "--method", "magic"], "--method magic"),
        (["--mechanism", "ferret", "--epsilon", "1", "--delta", "1e-5"], "--groups"),
        (["--mechanism", "secret", "--posterior", "0.5", "--delta", "1e-5"], "--prior"),
        (["--ledger", "x.json", "--epsilon", "1", "--delta", "1e-5"], "does not apply to --ledger"),
        (["--ledger", "x.json", "--batches", "shuffled", "--delta", "1e-5"], "does not apply to --ledger"),
        (
            ["--mechanism", "laplace", "--scale", "3", "--batches", "shuffled", "--delta", "1e-5"],
            "--batches does not apply",
        ),
        (["--mechanism", "laplace", "--scale", "3", "--noise-multiplier", "1", "--delta", "1e-5"], "does not apply to"),
        (["--noise-multiplier", "1", "--bits", "3", "--delta", "1e-5"], "--bits does not apply"),
        (["--noise-multiplier", "1", "--prior", "2", "--delta", "1e-5"], "--prior is 2"),
        (["--noise-multiplier", "1", "--steps", "2000000000000", "--delta", "1e-5"], "steps is 2000000000000"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--data", "x.jsonl", "--dataset-size", "9"], "remove one"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--unit", "who"], "give both, or remove it"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--plot", "a.png", "-o", "a.png"], "two different files"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--plot", "no/a.png"], "--plot no/a.png"),
        (
            ["--mechanism", "secret", "--record", "1.5x5", "--prior", "0.1", "--posterior", "0.5", "--delta", "1e-5"],
            "--record 1.5x5",
        ),
        (
            ["--epsilon", "1e-9", "--steps", "1000", "--sample-rate", "0.01", "--delta", "1e-15"],
            "no noise multiplier",
        ),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ["--noise-multiplier", "1e-3", "--sample-rate", "0.01", "--steps", "1000000", "--delta", "1e-5"],
            marks=pytest.mark.slow,
        ),
        ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "1000", "--delta", "1e-300"],
        *(
            pytest.param(
                ["--epsilon", epsilon, "--sample-rate", rate, "--steps", "10", "--delta", "1e-5"],
                marks=pytest.mark.slow,
            )
            for epsilon, rate in (("1e-6", "0.01"), ("1e4", "0.3"))
        ),
        ["--noise-multiplier", "1", "--sample-rate", "1", "--steps", "5", "--delta", "0.5"],
        ["--noise-multiplier", "1", "--sample-rate", "1e-300", "--steps", "5", "--delta", "1e-5"],
    ],
)
@pytest.mark.filterwarnings("error")
def test_hostile_numbers_end_in_numbers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of([*arguments, "--no-peers"], capsys)
    tight = named(report)["privacy loss distribution"]
    assert tight.epsilon is not None
    for guarantee in report.guarantees:
        if guarantee.status is Status.CONDITIONAL and guarantee.epsilon is not None and tight.floor is not None:
            assert guarantee.noise_multiplier != tight.noise_multiplier or guarantee.epsilon >= tight.floor


@pytest.mark.slow
def test_the_size_of_the_data_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "train.jsonl"
    lines = [{"text": f"record {i}", "who": f"p{i % 50}"} for i in range(200)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rest = ["--noise-multiplier", "1", "--delta", "1e-6", "--batch-size", "20", "--epochs", "3", "--no-peers"]
    stated = report_of(["--dataset-size", "200", *rest], capsys)
    assert report_of(["--data", str(data), *rest], capsys).mechanism == stated.mechanism
    owners = report_of(["--data", str(data), "--unit", "who", *rest], capsys)
    assert owners.mechanism == report_of(["--dataset-size", "50", *rest], capsys).mechanism
    assert owners.parameters["dataset_size"] == 50
    for more, because in (
        (["--data", str(data), "--dataset-size", "9"], "remove one"),
        (["--unit", "who"], "give both, or remove it"),
    ):
        assert run(["account", *more, *rest]) == 2
        assert because in capsys.readouterr().err
    assert run(["account", "--data", str(tmp_path / "absent.jsonl"), *rest]) == 3
