"""Whether the released tokenizer, chat template and other files are the ones the training started from.

Each could reveal what the weights do not. The vocabulary, its ids, the merges and the template must be the same, if the
files that the report names are present. Another version of transformers may write the rules for splitting text, and the
settings of a tokenizer, differently, so a difference in those is only listed as an omission.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from privctl.domain.errors import PrivctlError
from privctl.domain.report import BEGUN_WITH, Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import ADAPTER_CONFIG, ADAPTER_NAME, read_text
from verify.files.places import located
from verify.methods.expected import TRAINING

_SUBJECT, _COMPANION = "tokenizer", "companion"
_WORDS, _CONFIG, _TEMPLATE, _TEMPLATES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
#: The vocabulary files that older tokenizers have instead of a tokenizer.json.
_NUMBERED, _LISTED, _MERGES = "vocab.json", "vocab.txt", "merges.txt"
_WEIGHTS = ".safetensors"
#: The parts of a tokenizer that say how it splits a text.
_SPLITS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
#: Its parts that are compared one by one.
_COMPARED = frozenset({*_SPLITS, "vocab", "merges", "model"})
#: Files that are compared elsewhere, if no adapter was written, and those that are compared here.
_CONFIGURATIONS, _DONE = (
    frozenset({"config.json", "generation_config.json"}),
    frozenset({_WORDS, _TEMPLATE, _TEMPLATES}),
)
#: What transformers notes among a tokenizer's settings without a meaning for the model; the template is compared here.
_NOTES: dict[str, tuple[Any, ...]] = {
    "backend": ("tokenizers",), "is_local": (True, False), "local_files_only": (True, False),
}  # fmt: skip
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTokenizer:
    """The verdicts on a tokenizer, and what could not be compared."""

    verdicts: tuple[Verdict, ...] = ()
    omissions: tuple[Omission, ...] = ()


def check_tokenizer(path: Path, report: PrivacyReport) -> ComparedTokenizer:
    """Compare the tokenizer that a training released with the one it started from; ``path`` is that of its report."""
    released = _files(path, report, released=True)
    if report.step != TRAINING or not released:
        return ComparedTokenizer()
    begun = _files(path, report, released=False)
    faults, left_out = [], []
    adapter = any(PurePosixPath(artifact.path).name == ADAPTER_NAME for artifact in report.outputs)
    elsewhere = _DONE | (frozenset({ADAPTER_CONFIG} & begun.keys()) if adapter else _CONFIGURATIONS)
    others = [text for name in sorted(released.keys() - elsewhere) if (text := _other_file(name, released, begun))]
    try:
        before = _initial_tokenizer(begun)
        if _WORDS in released and before is not None:
            after = _object(released[_WORDS])
            faults += list(_vocabulary_changes(before, after))
            left_out += list(_not_compared(before, after))
        elif _WORDS in released:
            left_out.append("its words: the tokenizer that the training began with is not at hand, or not named")
        template, first = _template(released), _template(begun)
        if template is None or template == first:
            pass
        elif isinstance(first, str) or (first is None and _had_no_template(begun)):
            faults.append("its chat template is not that of the model that the training began with")
        else:
            left_out.append("its chat template: that of the model that the training began with is not at hand")
    except (PrivctlError, OSError, TypeError, AttributeError, KeyError, ValueError) as fault:
        left_out.append(f"what cannot be read ({fault})")
    return ComparedTokenizer(
        verdicts=tuple(Verdict(subject=_SUBJECT, outcome=Outcome.REFUTED, reason=fault) for fault in faults),
        omissions=tuple(
            Omission(what=f"{what}, not compared", reason=reason)
            for what, reasons in (("tokenizer", left_out), ("files beside the weights", others))
            for reason in reasons
        ),
    )


def _other_file(name: str, released: Mapping[str, Path], begun: Mapping[str, Path]) -> str:
    """What of the file ``name`` is not as the training began with it, or cannot be compared; "" if nothing."""
    word = "that it is as the training wrote it is the report's word"
    if name not in begun:
        but = ", but for its rank, scale and modules" if name == ADAPTER_CONFIG else ""
        return f"{name}: the training began with none that is at hand, and {word}{but}"
    try:
        if name.endswith(".json"):
            before, after = _object(begun[name]), _object(released[name])
        else:
            before, after = ({"content": read_text(files[name])} for files in (begun, released))
    except (PrivctlError, ValueError):
        return f"{name}: it cannot be read, and {word}"
    entries = [shown(key) for key in _differing(before, after) if key != "chat_template" and not _is_note(key, after)]
    return f"{name}: its {_listed(entries)} not as in what the training began with, and {word}" if entries else ""


def _is_note(key: str, settings: Mapping[str, Any]) -> bool:
    return any(settings.get(key) is value or settings.get(key) == value for value in _NOTES.get(key, ()))


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _listed(entries: list[str]) -> str:
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return f"{', '.join(entries[:_SHOWN])}{more} {'is' if len(entries) == 1 else 'are'}"


def _files(path: Path, report: PrivacyReport, *, released: bool) -> dict[str, Path]:
    """The released or the initial files, by name, as far as they are present and as recorded."""
    digests, by_name = NamedFiles(), {}
    for artifact in report.outputs if released else report.inputs:
        name = PurePosixPath(artifact.path).name
        if not (artifact.role == _COMPANION if released else artifact.role.startswith(BEGUN_WITH)):
            continue
        place = located(path, artifact.path)
        if not name.endswith(_WEIGHTS) and os.path.isfile(place):
            try:
                if digests.digest(place) == artifact.digest:
                    by_name[name] = place
            except PrivctlError:
                continue  # reported by the verdict on the chain
    return by_name


def _object(place: Path) -> Mapping[str, Any]:
    data = parse_json(read_text(place), str(place))
    if not isinstance(data, dict):
        raise ValueError(f"{place} is no JSON object")
    return data


def _initial_tokenizer(begun: Mapping[str, Path]) -> Mapping[str, Any] | None:
    """The tokenizer among the initial files, in the form of a tokenizer.json; None if there is none."""
    if _WORDS in begun:
        return _object(begun[_WORDS])
    if _NUMBERED in begun and _MERGES in begun:
        vocabulary, lines = _object(begun[_NUMBERED]), read_text(begun[_MERGES]).split("\n")
        merges = [line for line in lines if line.strip() and not line.startswith("#version")]
    elif _LISTED in begun:
        lines, merges = read_text(begun[_LISTED]).removesuffix("\n").split("\n"), []
        vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    else:
        return None
    return {"model": {"vocab": vocabulary, "merges": merges}}


def _vocabulary_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before["model"].get("vocab") != after["model"].get("vocab"):
        yield "its words, or their numbers, are not those of the tokenizer that the training began with"
    if _merges(before) != _merges(after):
        yield "its merges are not those of the tokenizer that the training began with"
    first, last = _known_token_ids(before), _added(after)
    renumbered = {token for token in first.keys() & last.keys() if first[token] != last[token]}
    if changed := sorted(map(str, renumbered | (_added(before).keys() - last.keys()))):
        yield f"its added token {changed[0]!r} is not that of the tokenizer that the training began with"


def _not_compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if not any(name in before for name in _SPLITS):
        yield "how it splits a text: the files of words that the training began with do not tell"
    elif changed := [name for name in _SPLITS if before.get(name) != after.get(name)]:
        yield f"how it splits a text: its {_listed(changed)} written otherwise than in what the training began with"
    if "added_tokens" in before:
        parts = {*_differing(before, after), *_differing(before["model"], after["model"])} - _COMPARED
        parts -= {"added_tokens"} if _added(before) != _added(after) else set()
        if others := [shown(part) for part in sorted(parts)]:
            yield f"its {_listed(others)} written otherwise than in what the training began with"
    if new := sorted(map(str, _added(after).keys() - _known_token_ids(before).keys())):
        more = "" if len(new) == 1 else f" and {len(new) - 1} more"
        yield f"its added token {new[0]!r}{more}, which the files that the training began with do not name"


def _merges(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The merges as tuples; older files write each as one string."""
    merges = data["model"].get("merges") or []
    return [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]


def _added(data: Mapping[str, Any]) -> dict[Any, Any]:
    return {token["content"]: token["id"] for token in data.get("added_tokens") or []}


def _known_token_ids(data: Mapping[str, Any]) -> dict[Any, Any]:
    """The ids of tokens that may be added: the added tokens, or the whole vocabulary if only that is stated."""
    return _added(data) if "added_tokens" in data else dict(data["model"]["vocab"])


def _had_no_template(begun: Mapping[str, Path]) -> bool:
    """Whether the initial model's folder holds no template, whether or not the report names one."""
    config = begun.get(_CONFIG)
    return config is not None and not any(os.path.lexists(config.with_name(name)) for name in (_TEMPLATE, _TEMPLATES))


def _template(files: Mapping[str, Path]) -> Any:
    """The chat template among ``files``, or None."""
    if _TEMPLATE in files:
        return read_text(files[_TEMPLATE])
    for name in (_TEMPLATES, _CONFIG):
        if name in files and (template := _object(files[name]).get("chat_template")):
            return template
    return None
