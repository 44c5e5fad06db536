"""Whether a configuration next to released weights makes a loader read other weights or run code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.models.guard.adapters import BASE
from privctl.models.guard.keys import CONFIGURATIONS, check_released, read_object
from privctl.storage.reader import ADAPTER_CONFIG


def misleading_reason(place: Path) -> str:
    """Why a loader that reads the file at ``place`` might load other weights or code; "" if it would not."""
    if place.name not in (*CONFIGURATIONS, ADAPTER_CONFIG) or not os.path.isfile(place):
        return ""
    try:
        data = read_object(place)
        if place.name == ADAPTER_CONFIG:
            data = {key: value for key, value in data.items() if not _is_of_peft(key, value)}
        check_released(data, place)
    except InputError as fault:
        return str(fault)
    return ""


def _is_of_peft(key: str, value: Any) -> bool:
    """Whether peft itself writes this entry: the base, or the transformers class it wraps if no task is named."""
    if key != "auto_mapping" or value is None:
        return key in (BASE, "auto_mapping")
    library = value.get("parent_library") if isinstance(value, dict) else None
    return isinstance(library, str) and library.split(".")[0] == "transformers"
