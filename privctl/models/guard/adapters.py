"""Checks of a low-rank adapter's configuration, and the base that it names. Nothing is downloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.models.guard.keys import check_keys, read_object
from privctl.storage.json_text import shown
from privctl.storage.reader import ADAPTER_CONFIG

#: The key under which peft names the adapter's base: a folder, or a name on a hub.
BASE = "base_model_name_or_path"
#: Initializations that do not use the training data; eva and corda, for example, do.
_WITHOUT_DATA = re.compile(r"gaussian|olora|orthogonal|loftq|pissa(_niter_\d+)?")


def adapter_config(path: Path) -> dict[str, Any]:
    """The JSON object in peft's ``adapter_config.json`` at ``path``.

    Raises InputError for keys that make a loader run code or read other files, and for initializations that may have
    used data.
    """
    data = read_object(path)
    check_keys({key: value for key, value in data.items() if key != BASE}, path)
    start = data.get("init_lora_weights")
    if isinstance(start, str) and not _WITHOUT_DATA.fullmatch(start):
        raise InputError(
            f"{path} has init_lora_weights {shown(start)}, which is not known to start without looking at the data: "
            "nothing bounds what that start gives away; train again from another start, such as true"
        )
    if data.get("peft_type") is None:
        raise InputError(f"{path} names no peft_type; give the folder that peft wrote")
    return data


def stated_base(folder: Path) -> str | None:
    """The base that the adapter in ``folder`` names; None if it names none."""
    base = adapter_config(folder / ADAPTER_CONFIG).get(BASE)
    return base if isinstance(base, str) and base else None


def base_at_hand(folder: Path) -> Path | None:
    """The folder of the base that the adapter in ``folder`` names, if it is on this machine; else None."""
    base = stated_base(folder)
    for place in () if base is None else (Path(base), folder / base):
        if place.is_dir() and (place / "config.json").is_file():
            return place
    return None
