"""The tables of the pages on audits: how often tests find a weak trace of membership, or none; what canaries show."""

from __future__ import annotations

from typing import Any

from audits.statistics.metrics import clopper_pearson
from tests.bench import canary_gradients, canary_starts, fused_learners, inversion, min_k_shares
from tests.bench.audit_bounds import GAUSSIAN, GUARD, JAX, MAHLOUJIFAR, OURS, STEINKE
from tests.bench.planted_leaks import HEADINGS, cells
from tests.docs.figures import results
from tests.docs.pages import as_table


def of_audits() -> dict[str, str]:
    """Each made part of ``docs/audit-measurements.md`` by its mark."""
    found, null = results("audit-power"), results("audit-null")
    return {
        "power data set": _data_set(found),
        "power users": _users(found),
        "repeats": _repeats(results("audit-repeats")),
        "null audits": _null_audits(null["null"]),
        "null simulated": _null_simulated(null["simulated"]),
        "extraction null": _extraction_null(results("extraction-null")),
    }


def of_attacks() -> dict[str, str]:
    """Each made part of ``docs/attack-measurements.md`` by its mark."""
    return {
        "fused learners": _fused_learners(results("fused-learners")["found"]),
        "min-k shares": _min_k_shares(results("min-k-shares")["found"]),
        "planted leaks": _planted_leaks(results("planted-leaks")),
    }


def of_canaries() -> dict[str, str]:
    """Each made part of ``docs/canaries.md`` by its mark."""
    gradients = canary_gradients.rows(results("canary-gradients")["found"])
    return {
        "one-run bounds": _one_run_bounds(results("audit-bounds")),
        "canary gradients": as_table(list(canary_gradients.HEADINGS), gradients),
        "canary starts": as_table(list(canary_starts.HEADINGS), canary_starts.rows(results("canary-starts"))),
    }


def of_extraction() -> dict[str, str]:
    """Each made part of ``docs/extraction.md`` by its mark."""
    return {"inversion": as_table(list(inversion.HEADINGS), inversion.rows(results("inversion")))}


def with_interval(count: int, sets: int, interval: list[float]) -> str:
    """A share with its interval, as "0.050 (0.021 to 0.100)"."""
    return f"{count / sets:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def _null_audits(found: dict[str, Any]) -> str:
    rows = [
        [kind, str(len(each["attacks"])), str(each["sets"])]
        + [with_interval(each[name], each["sets"], each[f"{name}_interval"]) for name in ("refuted", "rejected")]
        for kind, each in found.items()
    ]
    return as_table(["audit", "scores tested", "data sets", "verdict refutes", "joint test rejects"], rows)


def _null_simulated(found: dict[str, Any]) -> str:
    rows = [
        [name, str(each["rejected"]["sets"])]
        + [with_interval(each[key]["count"], each[key]["sets"], each[key]["interval"]) for key in ("rejected", "found")]
        for name, each in found.items()
    ]
    return as_table(["scores of", "sets", "rejects with nothing to find", "rejects with a small leak"], rows)


def _planted_leaks(found: dict[str, Any]) -> str:
    rows = [[f"`{row['attack']}`", row["leak"], *cells(row, found["sets"])] for row in found["found"]]
    return as_table(["attack", "leak", *HEADINGS], rows)


def _one_run_bounds(found: dict[str, Any]) -> str:
    """Medians of privctl's ways and the share above the truth, then one audit by everybody."""
    rows = []
    for each in found["results"]:
        variants, one = each["ways"], each["one_audit"]
        rows.append(
            [f"{each['canaries']:,}", each["mechanism"], f"{each['true']:.2f}"]
            + [f"{variants[name]['median']:.2f}" for name in (STEINKE, MAHLOUJIFAR)]
            + [
                cell
                for name in (OURS, GAUSSIAN)
                for cell in (f"{variants[name]['median']:.2f}", f"{100 * variants[name]['above_truth']:.3g} %")
            ]
            + [f"{one[name]:.2f}" for name in (OURS, JAX, GAUSSIAN, GUARD)]
        )
    names = [
        "canaries", "mechanism", "true", "Steinke", "Mahloujifar", "privctl", "above", "if Gaussian", "above",
        "one audit", "jax_privacy", "if Gaussian, one audit", "PrivacyGuard",
    ]  # fmt: skip
    return as_table(names, rows)


def _fused_learners(found: list[dict[str, Any]]) -> str:
    """Each row; those of planted leaks together, of which the attacks' own rows say more."""
    planted = [row for row in found if row["scores"].startswith(fused_learners.PLANTED_LEAK)]
    together = {
        "scores": f"planted leaks of {len(planted)} attacks",
        **{name: sum(row[name] for row in planted) for name in ("sets", "higher")},
        "auc": {name: sum(row["auc"][name] for row in planted) / len(planted) for name in ("ridge", "trees")},
    }
    chosen = [row for row in found if row not in planted]
    chosen.insert(chosen.index(next(row for row in chosen if "found" not in row and "beyond" not in row)), together)
    return as_table(list(fused_learners.HEADINGS), [fused_learners.cells(row) for row in chosen])


def _min_k_shares(found: list[dict[str, Any]]) -> str:
    """Targets of one way of training are one row: means over their sources, and all of their smaller sets."""
    rows = []
    for name, some in _by_training(found).items():
        sets = sum(each["sets"] for each in some)
        areas = (sum(each["auc"][weighting] for each in some) / len(some) for weighting in min_k_shares.WAYS)
        finds = (sum(each["found"][test] for each in some) / sets for test in min_k_shares.TESTS)
        rows.append([name, str(sets), *(f"{area:.3f}" for area in areas), *(f"{share:.2f}" for share in finds)])
    headings = ["leak", "sets", *min_k_shares.WAYS, *(f"{test}: finds" for test in min_k_shares.TESTS)]
    return as_table(headings, rows)


def _by_training(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        source, _, method = row["scores"].partition(", ")
        grouped.setdefault(f"three sources of text, {method}" if method else source, []).append(row)
    return grouped


def _extraction_null(found: dict[str, Any]) -> str:
    rows = [
        [part, kind, str(each["sets"])]
        + [with_interval(each[name], each["sets"], each[f"{name}_interval"]) for name in ("held_out", "accused")]
        for part in ("audits", "reference", "pairs", "secrets", "prose")
        for kind, each in found[part].items()
    ]
    return as_table(["rows", "known to the model", "sets", "exceeds held-out text", "among texts alike too"], rows)


def share(found: dict[str, Any], row: dict[str, Any], test: str) -> str:
    """The share of data sets of ``row`` in which ``test`` rejects."""
    return f"{row['rejected'][test] / found['sets']:.2f}"


def with_limits(found: dict[str, Any], row: dict[str, Any], test: str) -> str:
    """The same with its interval at 95 %, as "0.05 (0.02 to 0.11)"."""
    low, high = clopper_pearson(row["rejected"][test], found["sets"], 0.05)
    return f"{share(found, row, test)} ({low:.2f} to {high:.2f})"


def _data_set(found: dict[str, Any]) -> str:
    rows = [
        [str(row["records_per_side"]), f"{row['leak']:g}"]
        + [(share if row["leak"] else with_limits)(found, row, test) for test in row["rejected"]]
        for row in found["data_sets"]
    ]
    names = ["records a side", "leak", "Maini's t-test", "all attacks, `fused` among them", "`--attack fused`"]
    return as_table(names, rows)


def _users(found: dict[str, Any]) -> str:
    nothing, little = (
        {row["records_per_user"]: row for row in found["of_users"] if (row["leak"] > 0) is leaks}
        for leaks in (False, True)
    )
    rows = {
        each: [with_limits(found, nothing[each], "records")]
        + [
            cell
            for test in ("users", "with_fused")
            for cell in (with_limits(found, nothing[each], test), share(found, little[each], test))
        ]
        for each in nothing
    }
    names = [
        "records a user", "shuffling records, no leak", "shuffling users, no leak", "shuffling users, small leak",
        "with `fused`, no leak", "with `fused`, small leak",
    ]  # fmt: skip
    return as_table(names, [[str(each), *row] for each, row in rows.items()])


def _repeats(found: dict[str, Any]) -> str:
    rows = [
        [f"{100 * row['members']:g} %", f"{100 * row['share']:g} %"]
        + [with_limits(found, row, rule) for rule in ("as_audited", "side_by_side")]
        for row in found["found"]
    ]
    return as_table(["lines that are members", "lines that repeat", "as audited", "one copy kept of one side"], rows)
