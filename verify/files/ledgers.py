"""The events in a file that ``privctl account --ledger`` was given."""

from __future__ import annotations

from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.events import Event, Ledger, SampledGaussian
from privctl.reports.codec import decode, decode_events
from privctl.storage.json_text import parse_json

#: The keys of the state of Opacus's accountants.
_OF_OPACUS = {"history", "mechanism"}


def events_in(text: str, source: str) -> tuple[Event, ...] | None:
    """The events of a ledger, of a training's report, or of Opacus's history; None for another program's other forms.

    Raises InputError, naming ``source``, for what is none of these.
    """
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    data = parse_json(text, source)
    if isinstance(data, dict) and "schema_version" in data:
        mechanism = decode(text, source).mechanism
        if not isinstance(mechanism, Ledger):
            raise InputError(f"{source} is a report without a ledger of events")
        return mechanism.events
    history = data["history"] if isinstance(data, dict) and {"history"} <= data.keys() <= _OF_OPACUS else data
    if not isinstance(history, list):
        return None
    if all(isinstance(entry, dict) for entry in history):
        return decode_events(text, source)
    return tuple(_step(entry, source) for entry in history)


def _step(entry: Any, source: str) -> Event:
    """One entry of Opacus's history: noise multiplier, sampling rate and steps."""
    try:
        noise, rate, steps = entry
        return SampledGaussian(noise_multiplier=float(noise), sample_rate=float(rate), steps=int(steps))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{source} holds an entry that is no noise multiplier, sampling rate and steps") from None
