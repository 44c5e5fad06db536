"""Refuses keys in a model's JSON files that make a loader run, download or compile code, or read other weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import read_named_text, unreadable

#: Largest JSON file other than a tokenizer, in bytes; ImageNet-21k's 21,843 labels, twice, take 1.4 MB.
LARGEST_CONFIG = 16 << 20
#: Attention and expert implementations that come with transformers; other names are looked up on a hub.
OWN_CODE = frozenset({"eager", "sdpa", "grouped_mm", "batched_mm"})
#: A larger normalisation epsilon would dominate the variance that it stabilises; published models use at most 1e-3.
LARGEST_EPS = 0.1

_Refusal = Callable[[Any], bool]


def _is_set(value: Any) -> bool:
    return value not in (None, False, "", {}, [])


def _is_foreign(value: Any) -> bool:
    return isinstance(value, str) and value not in OWN_CODE


def _is_path(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and Path(value).name == value)


_WEIGHTS = "it makes a loader take weights from a place that no digest covers"
_CODE = "it makes a loader import or download code"
_COMPILE = "it makes a loader compile code"
_FILES = "it makes a loader read another file than the one beside the weights"

#: Key -> (which values are refused, why). These keys are refused at any depth.
REFUSED: dict[str, tuple[_Refusal, str]] = {
    "transformers_weights": (_is_set, _WEIGHTS),
    "use_pretrained_backbone": (_is_set, _WEIGHTS),
    "pretrained_backbone": (_is_set, _WEIGHTS),
    "pretrained": (_is_set, _WEIGHTS),
    "base_model_name_or_path": (_is_set, _WEIGHTS),
    "gguf_file": (_is_set, _WEIGHTS),
    "attn_implementation": (_is_foreign, _CODE),
    "_attn_implementation": (_is_foreign, _CODE),
    "_attn_implementation_internal": (_is_foreign, _CODE),
    "experts_implementation": (_is_foreign, _CODE),
    "_experts_implementation": (_is_foreign, _CODE),
    "_experts_implementation_internal": (_is_foreign, _CODE),
    "use_kernels": (_is_set, _CODE),
    "kernel_config": (_is_set, _CODE),
    "fusion_config": (_is_set, _CODE),
    "custom_generate": (_is_set, _CODE),
    "trust_remote_code": (_is_set, _CODE),
    "use_timm_backbone": (_is_set, _CODE),
    "quantization_config": (_is_set, f"{_CODE} for quantized weights"),
    "compression_config": (_is_set, f"{_CODE} for quantized weights"),
    "torch_compile": (_is_set, _COMPILE),
    "compile": (_is_set, _COMPILE),
    "compile_config": (_is_set, _COMPILE),
    "cache_config": (_is_set, _CODE),
    "configuration_files": (_is_set, _FILES),
    "config_file": (_is_set, _FILES),
    "vocab_file": (_is_path, _FILES),
    "merges_file": (_is_path, _FILES),
    "tokenizer_file": (_is_path, _FILES),
    "spm_file": (_is_path, _FILES),
    "sp_model_file": (_is_path, _FILES),
}
#: Keys that name code. They are dropped, since only transformers' own classes are used.
STRIPPED = ("auto_map", "auto_mapping", "custom_pipelines")
#: Files whose keys are settings of a loader; in other files keys are tokens or tensor names.
CONFIGURATIONS = frozenset({
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json",
    "preprocessor_config.json", "processor_config.json",
})  # fmt: skip
_EPS = ("_eps", "_epsilon")
_NOT_A_NORM = ("adam_epsilon",)


def read_object(path: Path, largest: int = LARGEST_CONFIG) -> dict[str, Any]:
    """The JSON object in a file of at most ``largest`` bytes; raises InputError for any other file."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if size > largest:
        raise InputError(f"{path} has {size} bytes, more than the limit of {largest}; give the model's own file")
    data = parse_json(read_named_text(path), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a JSON object; give the model's own file")
    return data


def check_keys(data: Any, path: Path) -> None:
    """Raise InputError for the first refused key, at any depth, in ``data`` read from ``path``."""
    for key, value in _pairs(data):
        test, why = REFUSED.get(key, (None, ""))
        if test is not None and any(test(leaf) for leaf in _leaves(value)):
            raise InputError(f"{path} has {key} {shown(value)}, and {why}; remove the key, or use another model")
        normal = key == "eps" or (key.endswith(_EPS) and key not in _NOT_A_NORM)
        if normal and isinstance(value, int | float) and not 0 <= value <= LARGEST_EPS:
            raise InputError(
                f"{path} has {key} {value:g}, which leaves little of what the weights compute; expected 0 to "
                f"{LARGEST_EPS:g}, as the model was trained with"
            )


def check_released(data: Any, path: Path) -> None:
    """Raise InputError for refused keys, and for keys that name code, in ``data`` of a file that privctl wrote."""
    check_keys(data, path)
    _, named = without_code(data)
    if named:
        raise InputError(
            f"{path} has {named[0]}, and {_CODE}; privctl writes no such key, so restore the file as it was written"
        )


def without_code(data: Any) -> tuple[Any, tuple[str, ...]]:
    """(``data`` without keys that name code, at any depth; the keys that were removed). A null names none."""
    removed: set[str] = set()

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            code = {key for key in STRIPPED if value.get(key) is not None}
            removed.update(code)
            return {key: strip(inner) for key, inner in value.items() if key not in code}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return strip(data), tuple(key for key in STRIPPED if key in removed)


def _pairs(data: Any) -> Iterator[tuple[str, Any]]:
    """(key, value) of every object, at any depth."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _leaves(value: Any) -> Iterator[Any]:
    """The values of a non-empty object, which has one for each part of a model; else the value itself."""
    if isinstance(value, dict) and value:
        yield from value.values()
    else:
        yield value
