"""Regular expressions that the user gives as ``NAME=REGEX``, with a time limit for each record.

They are those of the package ``regex``, which supports what Python's ``re`` does and has a timeout. The secret is the
group named ``secret`` if there is one, else the whole match.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

import regex

from privctl.domain.errors import CommandError
from privctl.secrets.scan.kinds.place import Occurrence
from privctl.storage.json_text import shown

_NAME = re.compile(r"[A-Za-z][0-9A-Za-z_-]{0,63}")
_GROUP = "secret"
#: A program that compiles the expression on its standard input and matches it with an empty text, within limits that
#: any sensible expression meets. One that calls itself without an end, such as (?R), fills the memory even there.
_TRIAL = """
import resource, sys
import regex
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
try:
    regex.compile(sys.stdin.buffer.read().decode()).fullmatch("", timeout=1)
except (regex.error, ValueError, OverflowError):
    pass  # the caller reports it
"""


class PatternError(Exception):
    """A pattern failed on a record; the message says which and why, and follows the record's place in a sentence."""


class Pattern:
    """Finds the matches of a regular expression, within ``seconds`` per text."""

    def __init__(self, name: str, expression: str, seconds: float) -> None:
        """Raises CommandError for an expression that is invalid, too costly to compile, or matches the empty text."""
        self._name, self._seconds = name, seconds
        self._compiled = _compile(name, expression)
        self._group: int | str = _GROUP if _GROUP in self._compiled.groupindex else 0

    def __call__(self, text: str) -> Iterator[Occurrence]:
        """The matches in ``text``; raises PatternError if the time is up, or for an empty match."""
        try:
            for match in self._compiled.finditer(text, timeout=self._seconds):
                start, end = match.span(self._group)
                if start == end >= 0:
                    raise PatternError(
                        f"is matched by --pattern {self._name} in a place of no length; have the pattern match at "
                        "least one character"
                    )
                if start >= 0:  # the group took part
                    value = match[self._group]
                    yield Occurrence(start, end, value, value)
        except TimeoutError:
            raise PatternError(
                f"keeps --pattern {self._name} busy for more than {self._seconds:g} s; avoid repetitions within "
                "repetitions such as (a+)+, or give it more with --pattern-seconds"
            ) from None
        except MemoryError:
            raise PatternError(
                f"has --pattern {self._name} use up the memory; avoid repetitions within repetitions such as (a+)+"
            ) from None


def parse_patterns(options: Iterable[str], reserved_names: Iterable[str]) -> dict[str, str]:
    """Name -> expression of each ``NAME=REGEX``; raises CommandError for another form or one of ``reserved_names``."""
    expressions: dict[str, str] = {}
    reserved = set(reserved_names)
    for text in options:
        name, sign, expression = text.partition("=")
        if not sign or not expression or not _NAME.fullmatch(name):
            raise CommandError(
                f"--pattern {shown(text)} is not NAME=REGEX with a name of letters, digits, - and _, such as "
                r"ticket=T-\d{6}"
            )
        if name in reserved or name.startswith("by-"):
            raise CommandError(f"--pattern {name} has the name of another kind of secret; choose another name")
        if name in expressions:
            raise CommandError(f"--pattern {name} is given twice; names must differ")
        expressions[name] = expression
    return expressions


def _compile(name: str, expression: str) -> regex.Pattern[str]:
    # Nested counted repetitions take unbounded memory, which cannot be limited within this process.
    trial = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-c", _TRIAL],
        input=expression.encode(errors="replace"),
        capture_output=True,
        check=False,
    )
    if trial.returncode:
        raise CommandError(
            f"--pattern {name} takes too much memory or time to prepare; avoid large counts of repetition within each "
            "other, and patterns that call themselves, such as (?R)"
        )
    try:
        compiled = regex.compile(expression)
    except (regex.error, ValueError, OverflowError) as error:
        raise CommandError(f"--pattern {name} is not a valid regular expression ({error}); correct it") from None
    if compiled.fullmatch("", timeout=1) is not None:
        raise CommandError(f"--pattern {name} matches the empty text; have it match at least one character")
    return compiled
