"""One text at a time, wherever a page may show one: it stands there as text, on whichever report it came in."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from privctl.show.html.page import page
from privctl.show.page_data import PageData, ReportSource
from tests.few import few
from tests.show.made import page_data

#: Breaks out of text, of an attribute, the style, the script, a drawing and a comment; then what a template would obey.
PAYLOAD = (
    '" onmouseover="x" \' autofocus=\'<b onclick=x></title></desc></svg></style></script><script>x</script>'
    "]]>--><svg onload=x>{{ 7*7 }}{% raw %}{#"
)
#: What the page takes as it is: names and digests that privctl itself makes, and words that choose what is shown.
_OWN = {"key", "parents", "step", "role", "digest"}

Put = Callable[[str], Any]


def places(value: Any, put: Put, path: str = "") -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Every text in a domain value, with what makes the whole value with another text put there."""

    def into(make: Callable[[Any], Any]) -> Put:
        return lambda text: put(make(text))

    if isinstance(value, str) and type(value) is str:
        yield path, lambda text: put(value + text)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            if field.name not in _OWN and hints[field.name] is not float:
                part = getattr(value, field.name)
                make = into(lambda new, name=field.name: replace(value, **{name: new}))
                yield from places(part, make, f"{path}.{field.name}")
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            make = into(lambda new, i=i: type(value)([*value[:i], new, *value[i + 1 :]]))
            yield from places(part, make, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            renamed = into(lambda new, key=key: {new if k == key else k: v for k, v in value.items()})
            yield f"{path} {key}", lambda text, key=key, renamed=renamed: renamed(key + text)
            yield from places(part, into(lambda new, key=key: {**value, key: new}), f"{path}[{key}]")


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("a comment", data))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def markup(text: str) -> tuple[set[tuple[str, ...]], str]:
    """Every element that occurs, with its attributes' names; and the text between them."""
    parser = _Markup()
    for line in text.splitlines(keepends=True):  # much quicker than all at once
        parser.feed(line)
    parser.close()
    return set(parser.found), "".join(parser.text)


def swapped(data: PageData, source: ReportSource) -> PageData:
    """``data`` with another source of the same key, wherever it stands."""

    def swap(old: tuple[ReportSource, ...]) -> tuple[ReportSource, ...]:
        return tuple(source if each.key == source.key else each for each in old)

    subjects = (replace(s, source=swap((s.source,))[0], audits=swap(s.audits)) for s in data.subjects)
    return replace(data, sources=swap(data.sources), subjects=tuple(subjects))


@pytest.mark.parametrize("every", few([8, 1], 0))
def test_a_text_anywhere_stays_text(every: int) -> None:
    data = page_data()
    usual, _ = markup(page(data))
    tried = [("title", replace(data, title=PAYLOAD))]
    for source in data.sources:
        tried += [(path, swapped(data, put(PAYLOAD))) for path, put in places(source, lambda value: value)]
    assert len(tried) > 120
    pages_with_payload = 0
    for path, changed in tried[::every]:
        found, text = markup(page(changed))
        pages_with_payload += PAYLOAD in text
        assert found <= usual, f"{path}: {sorted(found - usual)}"
    assert pages_with_payload > 80 // every


@pytest.mark.parametrize("place", ["batches are Poisson", "Settings of private", "follows if the stated"])
def test_the_check_notices_a_text_that_gets_through(place: str) -> None:
    usual, _ = markup(page(page_data()))
    assert markup(page(page_data()).replace(place, PAYLOAD))[0] - usual
