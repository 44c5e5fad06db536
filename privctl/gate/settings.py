"""The keys of a policy: allowed values, parsing from TOML or text, and one line of help for each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from privctl.domain.guarantee import Adjacency, Notion, PrivacyUnit, Scope, Status
from privctl.domain.verdict import Outcome

#: Steps that a policy can require.
STEPS = ("retrain", "external-training", "noise", "replay", "audit", "verify", "inspect")
#: The quantities of ``min_power``, each with its range.
POWERS = {"auc": (0.5, 1.0), "extraction": (0.0, 1.0), "epsilon": (0.0, 1e4)}
#: A larger epsilon is not a useful bound.
_LARGEST_EPSILON = 1e4
#: Characters of a value that an error message shows.
_SHOWN = 60
#: The value of ``protects`` if protecting each record by itself is enough.
RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a policy.

    ``read`` converts a TOML value into the setting; it raises ValueError with the end of a sentence that begins with
    the key. ``text`` converts the text of a flag or an environment variable into a TOML value. ``demand``: the key
    demands something of a model, unless its value is ``nothing``; a policy needs at least one such key.
    """

    name: str
    about: str
    read: Callable[[Any], Any]
    text: Callable[[str], Any]
    metavar: str
    demand: bool = True
    nothing: str | bool = False

    def demands(self, setting: Any) -> bool:
        """Whether this key with the value ``setting`` demands something of a model."""
        return self.demand and not (type(setting) is type(self.nothing) and setting == self.nothing)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown ``name``: the most similar ``known`` name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def shorten(value: object) -> str:
    """The repr of ``value``, cut after 60 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> Callable[[Any], float]:
    """Return a reader of finite numbers from ``low`` to ``high``; ``above`` and ``below`` exclude the ends."""
    expected = f"a number {'above' if above else 'of at least'} {low:g} and {'below' if below else 'at most'} {high:g}"

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"is {shorten(value)}; expected {expected}")
        # A whole number may be too large for a float; comparing it is exact.
        inside = (low < value if above else low <= value) and (value < high if below else value <= high)
        if not inside:
            raise ValueError(f"is {shorten(value)}; expected {expected}")
        return float(value)

    return read


def choices(kind: type[StrEnum] | tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of one name or a list of names of ``kind``; it removes duplicates."""
    names = kind if isinstance(kind, tuple) else tuple(member.value for member in kind)

    def read(value: Any) -> tuple[Any, ...]:
        listed = strings(value)
        for name in listed:
            if name not in names:
                raise ValueError(f"contains the unknown name {shorten(name)}; {suggestion(name, names)}")
        return listed if isinstance(kind, tuple) else tuple(kind(name) for name in listed)

    return read


def choice(kind: type[StrEnum]) -> Callable[[Any], Any]:
    """Return a reader of one name of ``kind``."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"is {shorten(value)}; expected one of {', '.join(member.value for member in kind)}")
        return choices(kind)(value)[0]

    return read


def strings(value: Any) -> tuple[str, ...]:
    """Read a string or a list of strings, none of them empty; duplicates are removed."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(item, str) and item for item in listed):
        raise ValueError(f"is {shorten(value)}; expected a string or a list of strings")
    return tuple(dict.fromkeys(listed))


def field(value: Any) -> str:
    """Read the name of a field of the data, as ``--unit`` takes it."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"is {shorten(value)}; expected the name of a field, such as 'patient', or {RECORD!r}")
    return value


def flag(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"is {shorten(value)}; expected true or false")
    return value


def powers(value: Any) -> Mapping[str, float]:
    """Read the effect sizes that audits must be able to detect, by quantity (``POWERS``)."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"is {shorten(value)}; expected a table such as {{ auc = 0.55, epsilon = 4 }}")
    sizes = {}
    for name, size in value.items():
        if name not in POWERS:
            raise ValueError(f"has the unknown entry {shorten(name)}; {suggestion(name, POWERS)}")
        low, high = POWERS[name]
        try:
            sizes[name] = number(low, high, above=True, below=True)(size)
        except ValueError as error:
            raise ValueError(f"has an entry {name} that {error}") from None
    return sizes


def _as_number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _as_list(text: str) -> Any:
    return [part.strip() for part in text.split(",")]


def _as_flag(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)


def _as_powers(text: str) -> Any:
    pairs = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    return {name.strip(): _as_number(size) for name, _, size in pairs} if len(set(names)) == len(names) else text


def _number(name: str, about: str, low: float, high: float, *, demand: bool = True, **ends: bool) -> Key:
    return Key(name=name, about=about, read=number(low, high, **ends), text=_as_number, metavar="NUMBER", demand=demand)


def _names(name: str, about: str, kind: type[StrEnum] | tuple[str, ...], *, demand: bool = False) -> Key:
    return Key(name=name, about=about, read=choices(kind), text=_as_list, metavar="NAME,...", demand=demand)


KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        _number("max_epsilon", "Largest epsilon of a guarantee that counts.", 0, _LARGEST_EPSILON, above=True),
        _number("at_delta", "Largest delta of a guarantee that counts; 1e-5.", 0, 1, below=True, demand=False),
        _names(
            "require",
            "Statuses that count: proved, conditional, claimed; proved and conditional.",
            (Status.PROVED.value, Status.CONDITIONAL.value, Status.CLAIMED.value),
        ),
        Key(
            name="accepted_assumptions",
            about="Unchecked assumptions that a guarantee, or an audit of external scores, may rest on; all except "
            "those about the loss, another program's training loop or such scores.",
            read=strings,
            text=_as_list,
            metavar="NAME,...",
            demand=False,
        ),
        _names("notions", "Notions of privacy that count; approximate-dp.", Notion),
        _names("units", "Units of privacy that count; example.", PrivacyUnit),
        Key(
            name="protects",
            about="The field (retrain --unit) for each value of which a guarantee must protect all records together; "
            "record: each record by itself.",
            read=field,
            text=str,
            metavar="FIELD",
            nothing=RECORD,
        ),
        _names("adjacencies", "Adjacencies that count; all but unstated.", Adjacency),
        Key(
            name="scope",
            about="this-model, or all-candidates if several candidates of one run are released; this-model.",
            read=choice(Scope),
            text=str,
            metavar="NAME",
            demand=False,
        ),
        _number("max_posterior", "Largest probability of guessing a secret (secret protection).", 0, 1, above=True),
        _number("max_auc", "Upper bound of every attack's AUC.", 0.5, 1, below=True),
        _number("max_tpr", "Upper bound of every attack's true positive rate at at_fpr.", 0, 1, above=True, below=True),
        _number("at_fpr", "False positive rate for max_tpr; 0.01.", 0, 1, above=True, below=True, demand=False),
        _number("max_exposure", "Upper bound of every planted canary's exposure, bits.", 0, 1000, above=True),
        _number("max_disclosed", "Upper bound of the share of canaries that the model completes.", 0, 1, below=True),
        _number("max_extracted", "Upper bound of the share of training texts extracted.", 0, 1, below=True),
        _number(
            "max_epsilon_lower_bound", "Largest lower bound on epsilon that an audit may certify.", 0, _LARGEST_EPSILON
        ),
        _number("min_confidence", "Least confidence that counts; 0.95.", 0.5, 1, below=True, demand=False),
        Key(
            name="min_power",
            about="Leaks that audits must have been able to detect: auc=0.55,epsilon=4,extraction=0.01.",
            read=powers,
            text=_as_powers,
            metavar="NAME=NUMBER,...",
        ),
        _number("min_accuracy", "Least accuracy on held-out records (retrain --held-out).", 0, 1),
        _number("max_loss", "Largest mean loss on held-out records, nats (retrain --held-out).", 0, 1000),
        _names("required_steps", "Steps that must be in the reports: audit, verify, ...", STEPS, demand=True),
        _number("max_age_days", "Largest age of a report, in days.", 0, 36500),
        _names(
            "forbid_outcomes",
            "Verdicts that stop a build; REFUTED always does, except a leak within both limits and the guarantee.",
            (Outcome.REFUTED.value, Outcome.INCONCLUSIVE.value),
        ),
        Key(
            name="require_signer",
            about="Public keys (.pub files), one of which must have signed each report and log.",
            read=strings,
            text=_as_list,
            metavar="FILE,...",
        ),
        Key(
            name="require_audit_log",
            about="Audit logs; the report of each audit of this model in them must be given.",
            read=strings,
            text=_as_list,
            metavar="FILE,...",
        ),
        Key(
            name="audit_log_head",
            about="Earlier heads of the log, or files with one; the log must still contain them.",
            read=strings,
            text=_as_list,
            metavar="HEAD|FILE,...",
            demand=False,
        ),
        Key(
            name="recompute",
            about="Whether guarantees are recomputed from their reports; true.",
            read=flag,
            text=_as_flag,
            metavar="true|false",
            demand=False,
        ),
        Key(
            name="require_model",
            about="Whether the model itself must be given (--model).",
            read=flag,
            text=_as_flag,
            metavar="true|false",
        ),
    )
}  # fmt: skip
