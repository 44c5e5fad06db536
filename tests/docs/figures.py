"""The measured figures of ``docs/performance.md`` and ``docs/utility.md``, from the results of ``tests.bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import coverage, families, finetune, public_mixing
from tests.docs.pages import ROOT, as_table

_FAILS = "fails"


def results(name: str) -> dict[str, Any]:
    """One benchmark's results."""
    path = ROOT / "tests" / "bench" / "results" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def parts() -> dict[str, str]:
    """Each made part of ``docs/performance.md`` by its mark."""
    return {
        "figures dp-sgd": _dp_sgd("dp-sgd"),
        "figures dp-sgd-amd": _dp_sgd("dp-sgd-amd"),
        "figures dp-sgd-own-loop": _dp_sgd("dp-sgd-own-loop"),
        "figures dp-sgd-processes": _processes(),
        "figures clipping-passes": _clipping_passes(),
        "figures layers": _layers(),
        "figures families": as_table(list(families.HEADINGS), families.rows(results("families"))),
        "figures dpquant": _dpquant(),
        "figures ferret": _ferret(),
        "figures device": _device(),
        "figures directions": _directions(),
        "figures device-methods": _device_methods(),
        "figures device-noise": _device_noise(),
        "figures device-attention": _device_attention(),
        "figures noise": _noise("noise"),
        "figures noise-memory": _noise("noise-memory"),
        "figures noise-xeon": _noise("noise-xeon"),
        "figures noise-memory-xeon": _noise("noise-memory-xeon"),
        "figures gradient-noise": _gradient_noise(),
        "figures scoring": _scoring(),
        "figures extraction": _extraction(),
        "figures calibration": _calibration(),
        "figures secrets": _secrets(),
        "figures startup": _startup(),
        "figures first-output": _first_output(),
        "conditions": _conditions(),
    }


def of_utility() -> dict[str, str]:
    """Each made part of ``docs/utility.md`` by its mark."""
    return {
        "figures finetune": as_table(list(finetune.HEADINGS), finetune.rows(results("finetune"))),
        "figures ferret-directions": _ferret_directions(),
        "figures public-mixing": as_table(list(public_mixing.HEADINGS), public_mixing.rows(results("public-mixing"))),
    }


def peers() -> str:
    """What the README quotes of ours beside Opacus's: least to most over the cases of a benchmark."""
    shapes, cases = results("dp-sgd")["shapes"], results("account")["calibration"]
    pairs, right, theirs, less = coverage.counts(results("coverage")["rows"])
    rows = [
        ["time of a private training step, non-private = 1", *_both(shapes, _time), "`python -m tests.bench dp-sgd`"],
        ["peak memory of it, non-private = 1", *_both(shapes, _memory), "the same"],
        [
            "seconds to find the noise multiplier for an epsilon",
            *(_span([case["parties"][party]["median_s"] for case in cases]) for party in ("privctl", "opacus")),
            "`python -m tests.bench account`",
        ],
        [
            f"right gradients of [{pairs} tiny models](docs/architectures.md), a task and architecture each",
            str(right),
            f"{theirs}, and {less} with batch normalisation frozen",
            "`python -m tests.bench coverage`",
        ],
    ]
    return as_table(
        ["least to most over the models or cases", "privctl", "Opacus, best of its modes for each", "repeat"], rows
    )


def _both(shapes: list[dict[str, Any]], measured: Callable[[dict[str, Any], dict[str, Any]], float]) -> Iterator[str]:
    for party in ("privctl", "opacus"):
        yield _span(
            [
                min(
                    measured(shape, found)
                    for name, found in shape["parties"].items()
                    if (name == party or (party == "opacus" and name.startswith("opacus "))) and _FAILS not in found
                )
                for shape in shapes
            ]
        )


def _span(values: list[float]) -> str:
    return f"{_number(min(values))} to {_number(max(values))}"


def _time(_: dict[str, Any], found: dict[str, Any]) -> float:
    return float(found["to_non_private"])


def _number(value: float, digits: int = 3) -> str:
    """``value`` to so many digits, without an exponent."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e" in text and abs(value) >= 1 else text


def _dp_sgd(name: str) -> str:
    shapes = results(name)["shapes"]
    parties = dict.fromkeys(
        name for shape in shapes for name in shape["parties"] if name not in ("non-private", "privctl, gradients only")
    )
    rows = []
    for name in parties:
        rows.append([name, *(_time_and_memory(shape, shape["parties"].get(name)) for shape in shapes)])
    titles = [f"{shape['shape']}, batch {shape['examples']} x {shape['positions']}" for shape in shapes]
    return as_table(["time / memory, non-private = 1", *titles], rows)


def _time_and_memory(shape: dict[str, Any], found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if _FAILS in found:
        return _FAILS
    return f"{_number(found['to_non_private'])} / {_number(_memory(shape, found), 3)}"


def _memory(shape: dict[str, Any], found: dict[str, Any]) -> float:
    return float(found["peak_mib"] / shape["parties"]["non-private"]["peak_mib"])


def _processes() -> str:
    rows = []
    for shape in results("dp-sgd-processes")["shapes"]:
        base, base_kept, ours, ours_kept = shape["processes"].values()
        rows.append(
            [
                f"{shape['shape']}, {shape['rounds']}",
                *(f"{each['to_non_private']:.2f}" for each in (ours, ours_kept, base_kept)),
                f"{ours_kept['to_non_private_alike']:.2f}",
                *(f"{a['page_faults']:,.0f} -> {b['page_faults']:,.0f}" for a, b in [(ours, ours_kept)]),
                *(f"{a['peak_mib']:.0f} -> {b['peak_mib']:.0f}" for a, b in [(ours, ours_kept), (base, base_kept)]),
            ]
        )
    titles = ["model, rounds", "private, returned", "private, kept", "non-private, kept", "private / non-private, kept"]
    peaks = [f"resident peak of a {kind} step, MiB" for kind in ("private", "non-private")]
    return as_table([*titles, "page faults of a private step", *peaks], rows)


def _clipping_passes() -> str:
    """Rows of a model and whether it is checkpointed; one pass beside two."""
    measured = results("clipping-passes")["measured"]
    rows = []
    for one, two in zip(measured[::2], measured[1::2], strict=True):
        assert (one["passes"], two["passes"]) == (1, 2)
        peaks = [f"{each['peak'] / 2**20:.0f}" for each in (one, two)]
        rows.append(
            [one["model"], "yes" if one["checkpointed"] else "no", *peaks, f"{one['ms']:.0f}", f"{two['ratio']:.2f}"]
        )
    names = ["model", "`--checkpointing`", "peak, MiB", "in two passes, MiB", "time, ms", "time, two passes / one"]
    return as_table(names, rows)


def _dpquant() -> str:
    found = results("dpquant")
    formats = [name for name in next(iter(found["costs"].values())) if name != "unquantized"]
    rows = []
    for shape, costs in found["costs"].items():
        measured = found["measurements"][shape]
        times = (_number(costs[name]["to_unquantized"]) for name in formats)
        rows.append([shape, *times, _number(measured["steps"]), str(measured["layers"])])
    return as_table(["step, unquantized = 1", *formats, "one measurement / step", "layers"], rows)


def _ferret() -> str:
    rows = []
    for shape in results("ferret")["shapes"]:
        for epsilon, run in shape["runs"]["epsilon"].items():
            silent = f"{100 * run['silent_steps']:.1f} %"
            others = [_number(run[f"to_{name}"]) for name in ("non-private", "privctl")]
            rows.append([shape["shape"], epsilon, f"{run['fire_probability']:.3g}", silent, *others])
    names = ["model", "nats", "fire probability", "silent steps", "time / non-private run", "time / DP-SGD run"]
    return as_table(names, rows)


def _ferret_directions() -> str:
    """Alignments of updates with the gradient of held-out records, a column for each set of weights."""
    starts = results("ferret-directions")["starts"]
    rows = [
        [first["update"], *(f"{_named(start, first['update'])['held_out']:.4f}" for start in starts)]
        for first in starts[0]["alignments"]
    ]
    return as_table(["update", *(start["weights_are_those"] for start in starts)], rows)


def _named(start: dict[str, Any], update: str) -> dict[str, Any]:
    return next(alignment for alignment in start["alignments"] if alignment["update"] == update)


def _device() -> str:
    rows = []
    for model, ways in results("device")["models"].items():
        for way, found in ways.items():
            waits, library = found["waits_a_micro_batch"], found["waits_of_transformers"]
            rows.append(
                [
                    model,
                    way,
                    f"{waits - library:g} + {library:g}",
                    f"{found['waits_a_step_beside']:g}",
                    f"{found['kernels_a_micro_batch']:g} + {found['kernels_a_step_beside']:g}",
                    f"{found['copied_a_micro_batch']:,.0f}",
                    f"{found['weights_bytes'] / 2**20:.2f}",
                    f"{found['most_bytes_held_beside'] / 2**20:.1f}",
                ]
            )
    names = [
        "model",
        "passes",
        "waits per micro-batch, privctl + transformers",
        "further waits per step",
        "kernels per micro-batch + further per step",
        "bytes copied per micro-batch",
        "weights, MiB",
        "peak besides weights, MiB",
    ]
    return as_table(names, rows)


def _directions() -> str:
    rows = [
        [model, f"{found['numbers']:,}", f"{found['bits']:,}", _number(found["numbers"] / found["bits"])]
        for model, found in results("device")["directions"].items()
    ]
    return as_table(["model", "bytes as numbers", "bytes as bits", "ratio"], rows)


def _device_methods() -> str:
    rows = []
    for name, ways in results("device")["methods"].items():
        pairs = ([ways[way][key] for way in ("before", "after")] for key in ("waits", "kernels"))
        held = [f"{ways[way]['held'] / 2**20:.1f}" for way in ("before", "after")]
        rows.append([name, *(f"{before:,} -> {after:,}" for before, after in pairs), " -> ".join(held)])
    return as_table(["step", "waits", "kernels", "peak besides weights, MiB"], rows)


def _device_noise() -> str:
    rows = [
        [name, str(found["tensors"])]
        + [f"{found[f'{way} before']:,} -> {found[f'{way} after']:,}" for way in ("triton", "tensor operations")]
        for name, found in results("device")["noise"].items()
    ]
    return as_table(["model", "trained tensors", "kernels with Triton", "kernels by tensor operations"], rows)


def _device_attention() -> str:
    rows = []
    for name, found in results("device")["attention"].items():
        held = [f"{found[f'{way}_bytes'] / 2**20:,.1f}" for way in ("definition", "blocks")]
        rows.append([name, f"{found['examples']:g}", *held, _number(found["ratio"])])
    names = ["attention, positions", "examples", "by definition, MiB", "in blocks, MiB", "time, blocks / definition"]
    return as_table(names, rows)


def _noise(bench: str) -> str:
    rows, variants = [], results(bench)["variants"]
    hidden = 1.05 * variants["cp"]["peak_mib"]  # what the benchmark's own process takes
    for name, found in variants.items():
        most = found["peak_mib"]
        rows.append(
            [
                name,
                _number(found["median_s"]),
                _number(found["cpu_s"]),
                _number(found["to_cp"]),
                _number(found["to_cp_and_sync"]),
                f"{most:,.0f}" if most > hidden else f"at most {most:,.0f}",
            ]
        )
    ratios = ["time / cp", "time / cp and sync"]
    return as_table(["way", "seconds", "processor seconds", *ratios, "peak memory, MiB"], rows)


def _layers() -> str:
    rows = [
        [name, _number(found["rule"]), _number(found["generic"])] for name, found in results("layers")["layers"].items()
    ]
    return as_table(["time, backward pass without clipping = 1", "by its rule", "by running it again"], rows)


def _gradient_noise() -> str:
    taken = results("gradient-noise")["seconds_a_number"]
    rows = [[name, f"{1e9 * found:.3g}", _number(found / taken["torch.randn"])] for name, found in taken.items()]
    return as_table(["way", "ns per number", "time / torch.randn"], rows)


def _scoring() -> str:
    rows = []
    for name, found in results("audit")["scoring"]["ways"].items():
        times = found.get("times_ours")
        rows.append([name, f"{found['tokens_per_s']:,.0f}", "1" if times is None else _number(times["median"])])
    return as_table(["way", "tokens per second", "time / privctl's"], rows)


def _extraction() -> str:
    found = results("audit")["extraction"]
    rows = []
    for case in ("few matching", "many matching"):
        for name, way in found[case]["ways"].items():
            others = way.get("other_verdicts")
            matching = f"{found[case]['matching']} of {found['windows']}"
            rows.append([matching, name, _number(way["to_generate"]["median"]), "-" if others is None else str(others)])
    return as_table(["suffixes that match", "way", "time / generate and compare", "verdicts that differ"], rows)


def _calibration() -> str:
    rows = []
    for case in results("account")["calibration"]:
        rows.append([case["case"]])
        for party in ("privctl", "dp-accounting", "opacus"):
            found = case["parties"][party]
            rows[-1].append(f"{_number(found['median_s'])} s: {found['answer']:.6f}")
            rows[-1].append(found["judged"].split(": ")[-1])
    names = ["case"]
    for party in ("privctl", "dp-accounting", "Opacus"):
        names += [party, "certified"]
    return as_table(names, rows)


def _secrets() -> str:
    rows = []
    for plan in results("secrets")["plans"]:
        gap = plan.get("gap")
        rows.append(
            [
                f"{plan['secrets']:,}",
                f"{plan['memberships']:,}",
                plan["way"],
                _number(plan["seconds"]),
                "-" if gap is None else f"{gap:.1e}",
                f"{plan['peak_mib']:,.0f}",
            ]
        )
    return as_table(["secrets", "memberships", "computed", "processor seconds", "relative gap", "peak MiB"], rows)


def _startup() -> str:
    rows = [
        [f"`{name}`", f"{1000 * found['median_s']:.0f}", _number(found["to_python"])]
        for name, found in results("startup")["variants"].items()
    ]
    return as_table(["call", "median, ms", "time / bare Python"], rows)


def _first_output() -> str:
    rows = [
        [name, f"{found['to_first']:.2f}", f"{found['to_end']:.2f}"]
        for name, found in results("first-output")["jobs"].items()
    ]
    return as_table(["job", "time to the first line / base", "time to the end / base"], rows)


def _conditions() -> str:
    rows = []
    for name in (
        "dp-sgd", "dp-sgd-amd", "dp-sgd-own-loop", "dp-sgd-processes", "families", "clipping-passes", "layers",
        "dpquant", "ferret", "finetune", "public-mixing", "noise", "noise-memory", "noise-xeon", "noise-memory-xeon",
        "gradient-noise", "audit", "account", "secrets", "startup", "first-output",
    ):  # fmt: skip
        found = results(name)
        machine = found["machine"]
        rows.append(
            [
                name,
                f"{machine['processor']}, {machine['cpus']} cores",
                f"{machine['load']:.1f}",
                str(found.get("rounds", "-")),
                str(found.get("threads", "-")),
                f"Python {machine['python']}, torch {machine['libraries']['torch']}",
            ]
        )
    return as_table(["benchmark", "machine", "load at the start", "rounds", "threads", "software"], rows)
