"""Every kind of report that privctl writes, with the policy of somebody who would accept it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import privctl
from privctl.cli import run
from privctl.domain.errors import ExitCode, PrivctlError
from privctl.domain.gate import GateJudgement
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.model_at_hand import ModelAtHand, model_at
from privctl.gate.policy import read_policy
from tests.integrations.loops import Loop
from tests.verify import reports
from verify.run import Verification, read, verify

#: Of ``reports.TRAININGS``, one for each method.
_FIRST = ("dp-sgd", "dp-zo", "clipped", "dpquant", "ferret published")
EVENTS = [
    {"type": "sampled-gaussian", "noise_multiplier": 1.5, "sample_rate": 0.02, "steps": 200},
    {"type": "laplace", "scale": 9, "steps": 3},
    {"type": "randomized-response", "epsilon": 0.3, "bits": 2, "sample_rate": 0.1, "steps": 10},
]
_RESPONSES = ["--mechanism", "randomized-response", "--bit-epsilon", "0.5", "--bits", "2", "--sample-rate", "0.05",
              "--steps", "40"]  # fmt: skip
_AUDITED = ("cut batches", "several records a draw")
#: The names of all kinds.
NAMES = (
    "noise", "noise, calibrated", "noise, several candidates", *reports.PLANS, "ledger", "responses", "own loop",
    "opacus", "from elsewhere", "verify", *reports.TRAININGS, "book of secrets", "plan of secrets", "planned",
    "noised", "audit", "audit of canaries", "mixed", *reports.FURTHER, *(f"audit of {name}" for name in _AUDITED),
    "extraction of cut batches",
)  # fmt: skip
#: What any customer asks beside numbers.
_USUAL = {"max_age_days": "90", "require_model": "true"}
_LOSS = "convex-loss,strongly-convex-loss,smooth-loss,clipping-inactive,clipping-keeps-convexity,step-size"
_NOISE = f"training-facts,training-rounding,integer-tensors,tied-tensors,{_LOSS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A report; ``policy`` passes it together with the reports ``beside`` and the ``model``.

    None where no gate judges such a report: it is about no model, or promises nothing of it.
    """

    path: Path
    policy: dict[str, str] | None = None
    beside: tuple[Path, ...] = ()
    model: Path | None = None


class Kinds(Mapping[str, Kind]):
    """Kinds by name: those of ``quick`` tests, and others, each of which is made when it is asked for."""

    def __init__(self, quick: dict[str, Kind], later: Mapping[str, Callable[[], Kind]]) -> None:
        self.quick = quick
        self._later = later

    def __getitem__(self, name: str) -> Kind:
        return self.quick[name] if name in self.quick else self._later[name]()

    def __iter__(self) -> Iterator[str]:
        return iter({**self.quick, **self._later})

    def __len__(self) -> int:
        return len(self.quick) + len(self._later)


def quick(folder: Path, write_model: Callable[..., Path]) -> dict[str, Kind]:
    """Kinds that are made in a second each, without a training."""
    found = {}
    for name, more, limit in (
        ("noise", (), "max_epsilon"),
        ("noise, calibrated", ("--calibration", "gaussian", "--regime", "convex"), "max_epsilon"),
        ("noise, several candidates", ("--epsilon", "1", "--epsilon", "4"), "scope"),
    ):
        report_path = folder / name.replace(" ", "-")
        report_path.mkdir()
        path = reports.noise(report_path, write_model, *more)
        policy = {"accepted_assumptions": _NOISE, "at_delta": "1e-3", "max_epsilon": "9000"}
        policy |= {"scope": "all-candidates"} if limit == "scope" else {}
        model = path.with_name(path.name.replace(".report.json", ".safetensors"))
        found[name] = Kind(path=path, policy=_USUAL | policy, model=model)
    found |= {name: Kind(path=reports.plan(folder, name)) for name in reports.PLANS}
    (folder / "events.json").write_text(json.dumps(EVENTS))
    for name, asked in (("ledger", ["--ledger", str(folder / "events.json")]), ("responses", _RESPONSES)):
        report_path = folder / f"{name}.report.json"
        assert run(["account", "--delta", "1e-5", *asked, "--json", "-q", "-o", str(report_path)]) == 0
        found[name] = Kind(path=report_path)
    found |= outside(folder)
    verified, noise = folder / "verified.report.json", found["noise"]
    assert run(["verify", str(noise.path), "-q", "-o", str(verified)]) == 0
    policy = {"required_steps": "verify", **(noise.policy or {})}
    found["verify"] = Kind(path=verified, policy=policy, beside=(noise.path,), model=noise.model)
    return found


def outside(folder: Path) -> dict[str, Kind]:
    """Kinds of trainings in loops that are not privctl's."""
    found = {}
    for name in ("own loop", "opacus"):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        loop = Loop()
        loop.train(epochs=2)
        model = loop.save(place / "model.safetensors")
        if name == "opacus":
            engine = SimpleNamespace(accountant=SimpleNamespace(history=[(1.0, 0.1, 12), (1.2, 0.1, 8)]))
            report = privctl.from_opacus(engine, model, examples=60)
        else:
            report = loop.private.report(model)
        (guarantee,) = report.guarantees
        asserted = [a.name for a in guarantee.assumptions if a.state == "asserted"]
        policy = {"accepted_assumptions": ",".join(asserted), "max_epsilon": "100", "at_delta": "1e-3"}
        found[name] = Kind(path=place / "model.report.json", policy=_USUAL | policy, model=model)
    model = Loop().save(folder / "elsewhere.safetensors")
    privctl.from_elsewhere(model)
    found["from elsewhere"] = Kind(path=folder / "elsewhere.report.json", model=model)
    return found


def _by(method: str, folder: Path) -> Kind:
    """One of ``reports.TRAININGS``."""
    path = reports.trained(folder, method)
    policy = {"max_epsilon": "20" if "dither" in method else "3"}
    if method == "ferret published":
        policy = {"max_epsilon": "0.5", "notions": "mutual-information"}
    model = folder / method.replace(" ", "-")
    return Kind(path=path, policy=None if method == "clipped" else _USUAL | policy, model=model)


def later(folder: Path) -> dict[str, Callable[[], Kind]]:
    """What makes kinds whose like is among ``trained``, in their folder: files of ``tests/cli`` verify each, and lies.

    Each is made once. Those of dp-sgd rest on more than its batches; two are audits of splits that privctl drew.
    """
    found: dict[str, Callable[[], Kind]] = {}
    for name in reports.TRAININGS:
        if name not in _FIRST:
            found[name] = functools.cache(functools.partial(_by, name, folder))
    found["mixed"] = functools.cache(functools.partial(_mixed, folder))
    for name in reports.FURTHER:
        found[name] = functools.cache(functools.partial(one_further, folder, name))
    for name in _AUDITED:
        found[f"audit of {name}"] = functools.cache(functools.partial(_split_of, found[name], folder, name))
    found["extraction of cut batches"] = functools.cache(
        functools.partial(_extraction_of, found["cut batches"], folder, "cut batches")
    )
    return found


def _mixed(folder: Path) -> Kind:
    policy = {"max_epsilon": "3", "accepted_assumptions": "public data,vocabulary"}
    return Kind(path=reports.mixed(folder), policy=_USUAL | policy, model=folder / "mixed")


def trained(folder: Path) -> dict[str, Kind]:
    """Kinds that take a training: all methods, what follows a plan, what is noised after, and audits."""
    found = {name: _by(name, folder) for name in _FIRST}
    book, plan, model = reports.protected(folder)
    policy = {"max_posterior": "0.2", "max_epsilon": "7"}
    found |= {"book of secrets": Kind(path=book), "plan of secrets": Kind(path=plan)}
    found["planned"] = Kind(path=model, policy=_USUAL | policy, model=folder / "planned")
    policy = {"accepted_assumptions": _NOISE, "at_delta": "1e-3", "max_epsilon": "9000"}
    found["noised"] = Kind(path=reports.noised(folder), policy=_USUAL | policy, model=folder / "noised")
    policy = {"max_auc": "0.8", "max_extracted": "0.4", "required_steps": "audit", "min_power": "auc=0.75"}
    release = {"beside": (found["dp-sgd"].path,), "model": folder / "dp-sgd"}
    found["audit"] = Kind(path=reports.audited(folder), policy=_USUAL | policy, **release)
    policy = {"max_disclosed": "0.6", "max_epsilon_lower_bound": "4", "min_power": "epsilon=3"}
    path = reports.of_canaries(folder)
    release = {"beside": (reports.report_of(folder / "with-canaries"),), "model": folder / "with-canaries"}
    found["audit of canaries"] = Kind(path=path, policy=_USUAL | policy, **release)
    return found


def _split_of(make: Callable[[], Kind], folder: Path, name: str) -> Kind:
    policy = {"max_auc": "0.99", "max_epsilon_lower_bound": "3", "required_steps": "audit"}
    of = make()
    return Kind(path=reports.of_split(folder, name), policy=_USUAL | policy, beside=(of.path,), model=of.model)


def _extraction_of(make: Callable[[], Kind], folder: Path, name: str) -> Kind:
    policy = {"max_extracted": "0.9", "required_steps": "audit"}
    of = make()
    return Kind(path=reports.extracted(folder, name), policy=_USUAL | policy, beside=(of.path,), model=of.model)


def one_further(folder: Path, name: str) -> Kind:
    """One of ``reports.further``."""
    path = reports.further(folder, name)
    policy = {"max_epsilon": "3", "accepted_assumptions": ",".join(_asserted(path))}
    return Kind(path=path, policy=_USUAL | policy, model=folder / name.replace(" ", "-"))


def _asserted(path: Path) -> list[str]:
    every = (
        assumption
        for guarantee in json.loads(path.read_text())["guarantees"]
        for assumption in guarantee["assumptions"]
    )
    return sorted({assumption["name"] for assumption in every if assumption["state"] == "asserted"})


def verified(path: Path) -> Verification | None:
    """None where it is no report that can be read."""
    try:
        return verify(path, read(path))
    except PrivctlError:
        return None


class Gate:
    """The policy of a kind, read once, with its model digested once."""

    def __init__(self, kind: Kind) -> None:
        assert kind.policy is not None
        self.kind = kind
        self.policy = read_policy(None, kind.policy, {}, RULES)
        self.model: ModelAtHand | None = None if kind.model is None else model_at(kind.model)

    def judged(self, path: Path) -> GateJudgement:
        """The report at ``path`` instead of the kind's own."""
        return judge([path, *self.kind.beside], self.policy, self.model, datetime.now(UTC))


def verdicts(kind: Kind, path: Path) -> tuple[ExitCode, str]:
    """How verify and a gate answer to the report at ``path``."""
    found = verified(path)
    code = ExitCode.BAD_INPUT if found is None else found.exit_code
    return code, "no gate" if kind.policy is None else str(Gate(kind).judged(path).outcome)
