"""Whether the settings beside a trained adapter are those of its training: they scale what its weights compute.

A training of a given adapter writes the settings that it read, but for the base and without entries that name code. A
new adapter has the rank that the report states, an alpha of twice that, and peft's defaults. With another scale, an
audit attacks another model than the one that was trained, and with fewer modules a loader leaves some of it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privctl.domain.report import PrivacyReport
from privctl.models.guard.adapters import BASE
from privctl.models.guard.keys import without_code
from privctl.storage.json_text import shown
from privctl.storage.reader import ADAPTER_CONFIG, SafetensorsFile
from verify.weights.configuration import begun_with, differences, flat, read_settings
from verify.weights.settings import UncheckableError, facts_of
from verify.weights.start import Digest

#: The entries of a new adapter that decide what it computes, apart from its rank, alpha and modules.
_OF_NEW: dict[str, Any] = {
    "use_rslora": False, "use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "layers_to_transform": None,
    "layer_replication": None, "trainable_token_indices": None, "target_parameters": None,
    "alora_invocation_tokens": None, "init_lora_weights": True, "bias": "none",
}  # fmt: skip
#: What peft takes for the entries that are missing.
_MISSING: dict[str, Any] = {"r": 8, "lora_alpha": 8, **_OF_NEW}
_LOW_RANK = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B)(\.weight)?")


def changed_settings(path: Path, report: PrivacyReport, output: Path, digest: Digest) -> Iterator[tuple[str, str]]:
    """Yields the settings' file and a sentence for each entry that is not the training's.

    ``path`` is that of the report, ``output`` that of the adapter's weights; ``digest`` gives a file's digest. Raises
    UncheckableError if the settings that the training began with are missing, or if a file cannot be read.
    """
    rank = facts_of(report).lora_rank
    released = read_settings(output.with_name(ADAPTER_CONFIG))
    if rank is not None:
        stated = {"r": rank, "lora_alpha": 2 * rank, **_OF_NEW}
        now = {name: released.get(name, missing) for name, missing in _MISSING.items()}
        of = f"a new adapter of rank {rank}, which the report states,"
    else:
        place = begun_with(path, report, ADAPTER_CONFIG, digest)
        if place is None:
            raise UncheckableError(
                f"the {ADAPTER_CONFIG} of the adapter that the training began with is not at hand, or not named"
            )
        stated, now = {**without_code(read_settings(place))[0], "inference_mode": True}, {**released}
        of = "the adapter that the training began with"
    sentences = differences(dict(flat(stated)), dict(flat(now)), frozenset({BASE}), of)
    yield from ((ADAPTER_CONFIG, text) for text in (*sentences, *_left_out(released, output)))


def _left_out(released: Mapping[str, Any], output: Path) -> Iterator[str]:
    """Yields a sentence for the first adapted module that a loader, going by ``target_modules``, leaves out."""
    targets = released.get("target_modules")
    if not isinstance(targets, list):
        return  # peft may hold a pattern, which its loader matches
    with SafetensorsFile(output) as file:
        found = (_LOW_RANK.fullmatch(info.name) for info in file.tensors)
        modules = sorted({match[1] for match in found if match is not None})
    for module in modules:
        if not any(module == target or module.endswith(f".{target}") for target in targets):
            yield f"its target_modules name no {shown(module)}, whose matrices the adapter holds: a loader skips them"
            return
