"""The book of claims as a table, for ``docs/claims.md``."""

from __future__ import annotations

from tests.docs.pages import as_table
from verify.papers import PAPERS, load_paper


def parts() -> dict[str, str]:
    """The made part: every sentence with the verdict that the book expects, which other tests hold it to."""
    rows = [
        [f"`{claim.key}`", claim.statement.replace("|", r"\|").replace("*", r"\*"), claim.expected.value]
        for name in PAPERS
        for claim in load_paper(name).claims
    ]
    return {"claims": as_table(["claim", "says", "verdict"], rows)}
