"""The process that renders chat templates: one line of JSON in, one line of JSON out. It may hang, grow or die.

It runs as a script, so that it loads nothing but Jinja. A request holds the ``template``, the special ``tokens`` by
name, ``calls`` (the variables of each rendering), the limit ``longest`` on a text in characters, and limits for all
calls together: ``seconds`` of processor time and ``memory`` in bytes. The answer is ``texts``, or an ``error`` message,
or ``long``, the number of characters of a text that is too long.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser

#: Most characters of an error message that are passed on.
_LONGEST_ERROR = 300


class _Generation(Extension):
    """``{% generation %}``, which marks what a model generates, for training; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> Node:
        """The block's body, unchanged."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Any) -> Any:
        return caller()


class _PlainNamespace(Namespace):
    """A namespace whose names cannot begin with an underscore, as Python's own attributes do."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *given = args
        named = dict(*given, **values)
        for name in named:
            _require_plain(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no {name[:50]!r}: names do not begin with an underscore")


def _refuse(message: object) -> None:
    raise TemplateError(str(message)[:_LONGEST_ERROR])


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    """The template compiled as in transformers: with the same environment, filters and functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = lambda *args, **values: dict(*args, **values)
    environment.globals["namespace"] = _PlainNamespace
    return environment.from_string(template)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; see the module."""
    try:
        template = _compiled(request["template"])
        texts = [template.render(tools=None, documents=None, **request["tokens"], **call) for call in request["calls"]]
    except MemoryError:
        return {"error": f"it needs more than {request['memory'] >> 20} MiB of memory"}
    except Exception as error:  # a template may raise anything, also on purpose
        return {"error": " ".join(str(error)[:_LONGEST_ERROR].split()) or type(error).__name__}
    longest = max(map(len, texts))
    return {"long": longest} if longest > request["longest"] else {"texts": texts}


def _limit(kind: int, most: int) -> None:
    """Set a soft limit to ``most``, or to the hard limit if that is lower."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    """Answer requests until there are no more."""
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))  # it has nothing to write
    for line in sys.stdin:
        request = json.loads(line)
        # The soft limit on time ends the process. The memory limit has extra room for the request itself.
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + request["seconds"])
        _limit(resource.RLIMIT_AS, request["memory"] + 64 * len(line))
        sys.stdout.write(json.dumps(answer(request)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
