"""Every warning of an audit of scores of records or of many models."""

from __future__ import annotations

import re

from verify.texts.warnings.forms import COUNT, NAME, NUMBER, either, form

NOTHING_SHOWN = form(
    "membership and scores are what the caller asserts: nothing shows that they are of one model, or that its members "
    "and non-members are a random split of one source, without which they may differ by themselves"
)
NO_SPLIT_SHOWN = form(
    "nothing shows that its members and non-members are a random split of one source, without which they may differ by "
    "themselves"
)
FITTED = form("scores that were fitted to the coins make the bounds invalid")
NOT_FITTED = form(
    "that the scores are of one model, and that nothing but the model and the records themselves decided them, is what "
    "the caller asserts: scores that were fitted to the coins make the bounds invalid"
)
#: The name of the assumption is absent in versions before a gate's policy could accept it.
_OF_MODEL = "nothing but the caller's word ties the scores to the model{name}: {statement}"
_COLUMNS = (
    "whether {columns} does better than chance is decided by one permutation test, which errs at most "
    "{number} times in 100 if both sides were drawn alike and no score was fitted to the labels"
)
COLUMN_INTERVALS = form(
    "{intervals} only say how large the differences are; each holds at {number} %, so that all hold together at the "
    "audit's confidence",
    intervals=either("interval"), number=NUMBER,
)  # fmt: skip
STRONGER_SCORES = form("a stronger attack may find what these scores did not")
INDEPENDENT = form(
    "the models are taken to be independent and alike but for the record, as the caller asserts: scores of many "
    "records by one model, or models that share a random seed, make the bound invalid"
)
ONE_RECORD = form(
    "the bound is about this record and this score; another record or a stronger score may show a larger epsilon"
)
PROCEDURE = form("what the bound certifies is the training procedure, not one model made by it")
EQUAL_SCORES = form("some scores of one side are equal; a model that is counted twice makes the bound invalid")
SWAPPED = form(
    "models without the record score higher than those with it; check that the two sides were not swapped and that a "
    "higher score means that the record was used"
)
_THRESHOLD = (
    "the threshold {threshold} is taken to be chosen before these scores were seen, as the caller asserts: one chosen "
    "by them makes the bounds invalid"
)


def of_model(statement: str) -> str:
    """The warning that ``statement``, an expression, is only the caller's word."""
    return form(_OF_MODEL, name=form(" (assumption 'scores of the model')") + "|", statement=statement)


def columns(count: int | None, *, grouped: bool = False) -> str:
    """The warning on the number of columns, or of kinds of group scores, that were tested; any number for None."""
    word, of = ("kind", " of scores of groups") if grouped else ("column", " of scores")
    known = either(word) if count is None else re.escape(f"{count} {word}{'s' * (count != 1)}")
    return form(_COLUMNS, columns=f"(?:{known}){of}", number=NUMBER)


def threshold(value: float | None) -> str:
    """The warning on the threshold by which models are distinguished; any threshold for None."""
    return form(_THRESHOLD, threshold=r"-?[\d.e+-]+" if value is None else re.escape(f"{value:g}"))


#: The text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, str] = {
    "asserted scores": NOTHING_SHOWN,
    "asserted split": NO_SPLIT_SHOWN,
    "fitted scores": FITTED,
    "scores not fitted": NOT_FITTED,
    "scores of the model": of_model(".{1,600}"),
    "columns tested": columns(None),
    "kinds tested": columns(None, grouped=True),
    "column intervals": COLUMN_INTERVALS,
    "stronger scores": STRONGER_SCORES,
    "names spelled alike": form(
        "{n} of the records' names in {field} differ from another's only in case, spaces or Unicode form, and count as "
        "different records; where they are the same, give one line for each record", n=COUNT, field=NAME,
    ),
    "independent models": INDEPENDENT,
    "one record": ONE_RECORD,
    "procedure": PROCEDURE,
    "equal scores": EQUAL_SCORES,
    "sides swapped": SWAPPED,
    "threshold": threshold(None),
}  # fmt: skip
