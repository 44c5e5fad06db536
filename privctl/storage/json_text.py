"""Strict JSON parsing: anything that another parser could interpret differently is refused."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from privctl.domain.errors import InputError

#: Characters of a value that an error message shows.
_SHOWN = 100
#: A string escape that is not a character on its own.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, source: str) -> Any:
    """Parse strict JSON; raises InputError for duplicate keys, NaN, infinities and absurd nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            twice = Counter(k for k, _ in pairs).most_common(1)[0][0]
            raise InputError(f"{source} names {shown(twice)} twice in one JSON object; keep one")
        return entries

    def refuse(token: str) -> Any:
        raise InputError(f"{source} holds {shown(token)}, which is not a finite number")

    def finite(token: str) -> float:
        number = float(token)
        return number if math.isfinite(number) else refuse(token)

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source} is not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}"
        ) from None
    except UnicodeEncodeError:
        raise InputError(f"{source} holds an unpaired surrogate, which is not a character") from None
    except ValueError:
        raise InputError(f"{source} holds a whole number too long to read") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply to be a report") from None


def shown(data: Any) -> str:
    """``data`` shortened for an error message."""
    text = repr(data)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
