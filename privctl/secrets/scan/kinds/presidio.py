"""Kinds from the recognizers of Microsoft Presidio: names of people, places and others.

``presidio-analyzer`` is optional, and imported only on request. Each of its entities is one kind, ``presidio-person``
and so on. A text is analysed once for all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from privctl.domain.errors import CommandError
from privctl.secrets.scan.kinds import SecretKind
from privctl.secrets.scan.kinds.place import Occurrence

_PREFIX = "presidio-"
_LANGUAGE = "en"
#: Presidio's default model, which it would download; privctl downloads nothing.
_MODEL = "en_core_web_lg"
#: Entities that do not identify a person: dates and URLs.
_LEFT_OUT = ("DATE_TIME", "URL")
#: Lower scores are guesses: Presidio scores any eight digits as a bank account with 0.05.
_LEAST_SCORE = 0.4
_SPACE = re.compile(r"\s+")


def presidio_kinds() -> list[SecretKind]:
    """One kind for each entity that the installed Presidio knows in English.

    Raises CommandError if it or its language model is not installed.
    """
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise CommandError(
            "--presidio needs the package presidio-analyzer, which is not installed; install it (pip install "
            f"presidio-analyzer) and its language model (python -m spacy download {_MODEL}), or remove --presidio"
        )
    if importlib.util.find_spec(_MODEL) is None:
        raise CommandError(
            f"--presidio needs the language model {_MODEL}, which is not installed; install it (python -m spacy "
            f"download {_MODEL}), or remove --presidio"
        )
    _keep_offline()
    engine = importlib.import_module("presidio_analyzer").AnalyzerEngine(supported_languages=[_LANGUAGE])
    entities = sorted({*engine.get_supported_entities(language=_LANGUAGE)} - {*_LEFT_OUT})
    analysis = _Analysis(engine, entities)
    return [SecretKind(name=_name(entity), find=analysis.finder(entity)) for entity in entities]


def _keep_offline() -> None:
    """Use tldextract's bundled list of public suffixes, since it downloads one by default; silence warnings."""
    for logger in ("presidio-analyzer", "tldextract"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    if importlib.util.find_spec("tldextract") is not None:
        module: Any = importlib.import_module("tldextract.tldextract")
        module.TLD_EXTRACTOR = module.TLDExtract(cache_dir=None, suffix_list_urls=())


def _name(entity: str) -> str:
    return _PREFIX + entity.lower().replace("_", "-")


class _Analysis:
    """Presidio's results for the last text, cached because each kind requests them in turn."""

    def __init__(self, engine: Any, entities: list[str]) -> None:
        self._engine, self._entities = engine, entities
        self._text: str | None = None
        self._found: list[Any] = []

    def finder(self, entity: str) -> Callable[[str], Iterator[Occurrence]]:
        """A function that finds ``entity`` in a text."""

        def find(text: str) -> Iterator[Occurrence]:
            for match in self._analyze(text):
                value = text[match.start : match.end]
                if match.entity_type == entity and value.strip():
                    yield Occurrence(match.start, match.end, _SPACE.sub(" ", value.strip()), value)

        return find

    def _analyze(self, text: str) -> list[Any]:
        if text != self._text:
            self._found = self._engine.analyze(
                text=text, language=_LANGUAGE, entities=self._entities, score_threshold=_LEAST_SCORE
            )
            self._text = text
        return self._found
