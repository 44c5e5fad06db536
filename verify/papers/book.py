"""Runs the book of claims: judges every claim of the chosen papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.errors import CommandError
from privctl.domain.report import Omission
from verify.papers import PAPERS, load_paper
from verify.papers.claim import JudgedClaim, judge
from verify.prove.prover import Prover

#: The theorems that all rows use and none proves.
CITED = Omission(
    what="What the rows rest on",
    reason="theorems that are cited, not proved here: Neyman and Pearson's lemma, the composition of Gaussians, "
    "post-processing, the chain rule, that convex steps do not expand; and real arithmetic, not floating point",
)


def chosen_papers(papers: Sequence[str]) -> tuple[str, ...]:
    """The named papers in the book's order, or all if none is named. Raises CommandError for unknown ones."""
    unknown = [name for name in papers if name not in PAPERS]
    if unknown:
        raise CommandError(f"--paper {unknown[0]} is not in the book; it has {', '.join(PAPERS)}")
    return tuple(name for name in PAPERS if not papers or name in papers)


def run(papers: Sequence[str], prover: Prover) -> Iterator[JudgedClaim]:
    """Judge the claims of ``papers`` lazily, one after another."""
    for name in chosen_papers(papers):
        paper = load_paper(name)
        yield from judge(paper.title, paper.claims, prover)


def unchecked_statements(papers: Sequence[str]) -> tuple[Omission, ...]:
    """The statements of those papers that cannot be checked by computer, and the theorems that are only cited."""
    return (*(omission for name in chosen_papers(papers) for omission in load_paper(name).unchecked), CITED)


def unexpected_rows(rows: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """The rows whose outcome differs from the one that the book expects, except undecided ones."""
    return [row for row in rows if row.judgement.outcome is not row.claim.expected and not row.undecided]
