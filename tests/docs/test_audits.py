"""The numbers on the pages on audits are those that the statistics give, and the attacks are all there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from audits import ATTACKS, THOROUGH
from audits.canaries.design import bound_alpha, power_ceiling, register
from audits.extraction.discoverable import least_queries
from audits.statistics import f_dp, metrics, one_run, power, two_arm
from audits.statistics.relabel import relabellings
from privctl.show import leaks
from tests.bench import audit_bounds, canary_starts, fused_learners, inversion
from tests.docs.digits import agrees
from tests.docs.figures import results
from tests.docs.pages import pages, table

PAGES = pages()
AUDITS, ATTACK_FORMULAS = PAGES["audits.md"], PAGES["attacks.md"]
CANARIES, EXTRACTION = PAGES["canaries.md"], PAGES["extraction.md"]
ERRORS, FOUND = PAGES["audit-measurements.md"], PAGES["attack-measurements.md"]
Row = dict[str, str]


def unwrapped(text: str) -> str:
    """A page with each run of spaces and line ends as one space."""
    return " ".join(text.split())


def number(row: Row, name: str) -> Any:
    value = float(row[name])
    return int(value) if value.is_integer() and "e" not in row[name] else value


def guessed(row: Row) -> tuple[int, int, int]:
    return number(row, "canaries"), number(row, "guesses"), number(row, "right")


def most(canaries: int) -> float:
    sets = register([1] * canaries)
    return power_ceiling(sets, 1e-5, bound_alpha(0.05, sets, sets))


def most_of_groups(groups: int, attacks: int) -> float:
    """Each attack has two scores of a group."""
    return power_ceiling(register([1] * groups), 1e-5, 0.025 / (2 * attacks))


def arms(row: Row) -> tuple[two_arm.RankTest]:
    counts = {name: number(row, name) for name in ("rank", "beyond", "counted")}
    return (two_arm.RankTest(threshold=0.0, ranked=number(row, "of"), from_without=True, **counts),)


TABLES: list[tuple[str, str, str, Callable[[Row], float]]] = [
    (
        "audits",
        "Detectable AUC",
        "AUC",
        lambda row: power.detectable_auc(number(row, "members"), number(row, "non-members")),
    ),
    (
        "canaries",
        "Lower bounds from one run",
        "epsilon, Steinke",
        lambda row: one_run.epsilon_bound(*guessed(row), float(row["delta"])),
    ),
    ("canaries", "Lower bounds from one run", "mu", lambda row: f_dp.mu_bound(*guessed(row))),
    (
        "canaries",
        "Lower bounds from one run",
        "epsilon if Gaussian, at 1e-5",
        lambda row: f_dp.epsilon_of_mu(f_dp.mu_bound(*guessed(row)), 1e-5),
    ),
    (
        "canaries",
        "What one run can certify",
        "largest bound at delta 0",
        lambda row: one_run.epsilon_bound(*[number(row, "canaries")] * 3, 0),
    ),
    (
        "canaries",
        "What one run can certify",
        "at delta 1e-5",
        lambda row: one_run.epsilon_bound(*[number(row, "canaries")] * 3, 1e-5),
    ),
    (
        "canaries",
        "What one run can certify",
        "detectable",
        lambda row: power.one_run_detectable(number(row, "canaries"), number(row, "canaries"), 0),
    ),
    (
        "canaries",
        "What one run can certify",
        "detectable above a claim of 1",
        lambda row: power.one_run_detectable(number(row, "canaries"), number(row, "canaries"), 0, claim=1),
    ),
    ("canaries", "What an audit of canaries can certify", "largest epsilon", lambda row: most(number(row, "canaries"))),
    (
        "audits",
        "How many groups to draw",
        "largest epsilon, six attacks",
        lambda row: most_of_groups(number(row, "groups"), 6),
    ),
    ("audits", "How many groups to draw", "one attack", lambda row: most_of_groups(number(row, "groups"), 1)),
    (
        "canaries",
        "Scores of many models",
        "epsilon",
        lambda row: two_arm.epsilon_bound(arms(row), float(row["delta"]), float(row["alpha"])).value,
    ),
    ("canaries", "Scores of many models", "mu", lambda row: two_arm.mu_bound(arms(row), float(row["alpha"])).value),
    (
        "extraction",
        "By sampling",
        "queries for probability 0.5",
        lambda row: least_queries(float(row["log-probability of the text"]), 0.5) or math.inf,
    ),
]


@pytest.mark.parametrize(
    ("page", "section", "column", "compute"), TABLES, ids=[f"{section}, {column}" for _, section, column, _ in TABLES]
)
def test_the_tables_of_the_audit_pages_are_computed(
    page: str, section: str, column: str, compute: Callable[[Row], float]
) -> None:
    rows = table(PAGES[f"{page}.md"], section)
    assert rows
    assert [(row, compute(row)) for row in rows if not agrees(row[column], compute(row))] == []


def test_the_example_of_an_auc() -> None:
    found = metrics.auc(np.array([0.9, 0.8, 0.7, 0.6, 0.55]), np.array([0.65, 0.5, 0.4, 0.3, 0.2]))
    assert "give 0.92 with interval 0.503 to 1" in unwrapped(AUDITS)
    assert [f"{value:.3g}" for value in (found.value, found.lower, found.upper)] == ["0.92", "0.503", "1"]


def test_every_attack_is_listed() -> None:
    assert {row["attack"].strip("`") for row in table(ATTACK_FORMULAS, "Attacks by default")} == set(ATTACKS)
    assert {row["attack"].strip("`") for row in table(ATTACK_FORMULAS, "More attacks")} == set(THOROUGH)


def test_what_each_attack_found_is_what_was_measured() -> None:
    measured = results("attacks")
    section = FOUND.split("## What each attack found\n", 1)[1]
    for model, title in (("plain", "plain"), ("dp-sgd", "private")):
        for name, values in measured[model]["attacks"].items():
            (row,) = (line.split(" | ") for line in section.splitlines() if line.startswith(f"| `{name}` |"))
            columns = row[1:3] if title == "plain" else [row[3], row[4].removesuffix(" |")]
            assert columns == [f"{values[quantity]:.3f}" for quantity in ("AUC", "TPR at 1 % FPR")]
    for side, shares in measured["dp-sgd"]["power"].items():
        assert f"| {side} | {' | '.join(f'{share:.2f}' for share in shares.values())} |" in section


def test_what_whole_audits_found_is_what_was_measured() -> None:
    measured = results("audit-null")
    rows = table(ERRORS, "Audits with nothing to find")
    assert [row["audit"] for row in rows] == list(measured["null"])
    for row in rows:
        found = measured["null"][row["audit"]]
        assert (row["scores tested"], row["data sets"]) == (str(len(found["attacks"])), str(found["sets"]))
        for column, name in (("verdict refutes", "refuted"), ("joint test rejects", "rejected")):
            low, high = metrics.clopper_pearson(found[name], found["sets"], 0.05)
            assert row[column] == f"{found[name] / found['sets']:.3f} ({low:.3f} to {high:.3f})"
            assert low <= measured["level"], "the measurement does not exclude that the level holds"
    for name, each in measured["simulated"].items():
        refused = "refused" in name
        assert (each["rejected"]["interval"][0] > measured["level"]) is refused, name
        assert each["found"]["interval"][0] > each["rejected"]["interval"][1] or refused, name
    for each in measured["power"]:
        cells = [f"{each['alone_sees']:.3f}", f"{each['alone']:.2f}"]
        cells += [f"{each['together_sees']:.3f}", f"{each['together']:.2f}"]
        assert f"| {each['records_per_side']} | {' | '.join(cells)} |" in ERRORS
        assert (
            f"{each['alone_sees']:.3f}"
            == f"{power.detectable_area_beyond(1.959964, *2 * [each['records_per_side']]):.3f}"
        )


def test_simulated_tests_keep_their_level_but_for_the_one_that_shuffles_records() -> None:
    measured = results("audit-power")
    level, sets = measured["level"], measured["sets"]
    assert unwrapped(ERRORS).count(f"how often each test rejects in {sets} made-up data sets") == 2
    assert f"data sets of {measured['users']} users a side" in unwrapped(ERRORS)
    for row in measured["data_sets"] + measured["of_users"]:
        lowest = {test: metrics.clopper_pearson(count, sets, 0.01)[0] for test, count in row["rejected"].items()}
        if not row["leak"]:
            fooled = lowest.pop("records", 0.0)
            assert max(lowest.values()) <= level, "the measurement does not exclude that the level holds"
            assert fooled > level or row.get("records_per_user", 1) < 16


def test_repeats_keep_the_level_as_audited_and_not_by_side() -> None:
    measured = results("audit-repeats")
    level, sets = measured["level"], measured["sets"]
    said = f"rejects in {sets} made-up data sets of {measured['lines']} lines with nothing to find"
    assert said in unwrapped(ERRORS)
    for row in measured["found"]:
        found = {rule: metrics.clopper_pearson(count, sets, 0.01)[0] for rule, count in row["rejected"].items()}
        assert found["as_audited"] <= level, "the measurement does not exclude that the level holds"
        assert (found["side_by_side"] > level) >= (row["members"] == 0.9 and row["share"] >= 0.3)


def test_other_projects_bounds_are_as_near_as_is_said() -> None:
    for each in results("audit-bounds")["results"]:
        one = each["one_audit"]
        assert 1 - 0.0145 <= one[audit_bounds.GUARD] / one[audit_bounds.GAUSSIAN] < 1.0001
        assert one["jax_privacy"] == pytest.approx(one[audit_bounds.STEINKE], abs=1e-5)


def test_boosted_trees_find_what_is_said() -> None:
    measured = results("fused-learners")
    trained = [
        row["auc"]["trees"] - row["auc"]["ridge"]
        for row in measured["found"]
        if row["scores"].startswith(("privctl's", "mimir's", "leakpro's")) and not row["scores"].endswith("null")
    ]
    assert (len(trained), sum(each < 0 for each in trained)) == (13, 11)
    assert (f"{-min(trained):.2f}", f"{max(trained):.3f}") == ("0.03", "0.005")
    (linear, both_ways) = (row for row in measured["found"] if row["scores"] in fused_learners.LEAKS)
    assert linear["found"]["trees"] < linear["found"]["ridge"]
    assert both_ways["found"]["trees"] > both_ways["found"]["ridge"]
    assert f"{linear['seconds']['trees']:.2f} s for {linear['records']} records" in unwrapped(FOUND)
    assert f"{linear['seconds']['trees'] * measured['fits'] / 60:.1f} minutes" in unwrapped(FOUND)


def test_what_canaries_show_by_where_training_begins_is_what_is_said() -> None:
    measured = results("canary-starts")
    found = measured["found"]
    assert {len(runs) for runs in found.values()} == {4}
    helps = {
        name: all(a["auc"] > b["auc"] for a, b in zip(runs, found[canary_starts.USUAL], strict=True))
        for name, runs in found.items()
    }
    assert helps == {canary_starts.USUAL: False, canary_starts.PUBLIC: False, canary_starts.KNOWN: True}
    assert f"{max(run['epsilon'] for runs in found.values() for run in runs):.1f}" == "0.2"
    settings = measured["settings"]
    sentence = f"({settings['records']} descriptions of commands, {settings['canaries']} canaries of six digits"
    assert sentence in unwrapped(CANARIES)


def test_where_weights_give_images_back_is_what_is_said() -> None:
    from scipy import stats

    measured = results("inversion")
    runs = measured["found"]
    assert {kind: len(each) for kind, each in runs.items()} == dict.fromkeys(inversion.KINDS, 3) | {"resnet plain": 5}
    finds = {kind: sum(run["conditions"]["p"] < 0.05 for run in each) for kind, each in runs.items()}
    assert finds == {
        "small": 3, "decay": 3, "usual": 2, "null": 0,
        "resnet small": 2, "resnet decay": 0, "resnet plain": 1, "vit plain": 0,
    }  # fmt: skip
    low = [(kind, run["round"]) for kind, each in runs.items() for run in each if run["class"]["p"] < 0.05]
    assert low == [("resnet plain", 2)]
    (one,) = (run for run in runs["resnet plain"] if run["conditions"]["p"] < 0.05)
    together = stats.combine_pvalues([run["conditions"]["p"] for run in runs["resnet plain"]]).pvalue
    sentence = (
        f"({one['conditions']['p']:.3f} and {one['class']['p']:.3f}); Fisher's method gives {together:.2f} for all five"
    )
    assert sentence in unwrapped(EXTRACTION)
    for kind, share in (("resnet plain", 0.04), ("vit plain", 0.01)):
        assert round(1 - fmean(run["left"][0] for run in runs[kind]), 2) == share
        assert all(run["left"][1] - run["left"][0] < 0.025 for run in runs[kind])
    settings = measured["settings"]
    sentence = f"{settings['records']} photographs of {settings['size']} by {settings['size']} pixels"
    assert sentence in unwrapped(EXTRACTION)
    assert f"Each attack made {settings['images']} images" in unwrapped(EXTRACTION)


def test_a_wrong_number_is_noticed() -> None:
    assert agrees("0.1269", 0.12694)
    assert not agrees("0.1269", 0.1271)
    assert not agrees("0.126936737506643946", 0.1269367375)
    assert agrees("839.4", 839.3934)


def test_the_margins_beyond_which_a_leak_counts() -> None:
    said = {row["finding"]: row["beyond the margins if"] for row in table(AUDITS, "How to read a result")}
    assert f"more than {leaks.AUC_MARGIN:g} above chance" in said["membership"]
    assert f"rate more than {leaks.RATE_MARGIN:g}" in said["membership"]
    assert f"more than {leaks.RATE_MARGIN:g} above chance" in said["secrets"]
    assert f"more than {leaks.EXPOSURE_MARGIN:g} bits above" in said["canaries"]
    (bound,) = (row for name, row in said.items() if "epsilon" in name)
    assert f"at least {leaks.LEAST_EPSILON:g}," in bound


def test_the_guesses_on_canaries_by_their_number() -> None:
    for canaries, said in ((250, "20, 50, 124 and 250 guesses"), (100, "20, 50 and 100")):
        *first, last = (str(group.guesses) for group in register([1] * canaries))
        assert f"{', '.join(first)} and {last}" == said.removesuffix(" guesses")
        assert said in unwrapped(CANARIES)


def test_how_often_the_baselines_shuffle() -> None:
    assert "shuffles membership up to 999 times" in unwrapped(AUDITS)
    counts = [len(relabellings(np.arange(records) % 2 == 0, 0)) - 1 for records in (20, 5000, 6000)]
    assert counts[:2] == [999, 999]
    assert counts[2] < 999
