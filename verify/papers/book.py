"""Running the book: every claim of the papers asked for, with the proofs each one rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.errors import CommandError
from privctl.domain.report import Omission
from verify.papers import PAPERS, load_paper
from verify.papers.claim import JudgedClaim, judge
from verify.prove.prover import Prover

#: What no row proves and all of them use.
CITED = Omission(
    what="What the rows rest on",
    reason="theorems that are cited, not proved here: Neyman and Pearson's lemma, the composition of Gaussians, "
    "post-processing, the chain rule, that convex steps do not expand; and real arithmetic, not floating point",
)


def chosen_papers(papers: Sequence[str]) -> tuple[str, ...]:
    """The papers asked for, in the book's order; all of them where none was named. Raises CommandError for others."""
    unknown = [name for name in papers if name not in PAPERS]
    if unknown:
        raise CommandError(f"--paper {unknown[0]} is not in the book; it has {', '.join(PAPERS)}")
    return tuple(name for name in PAPERS if not papers or name in papers)


def run(papers: Sequence[str], prover: Prover) -> Iterator[JudgedClaim]:
    """Judge the claims of ``papers`` one after another, as they are asked for."""
    for name in chosen_papers(papers):
        paper = load_paper(name)
        yield from judge(paper.title, paper.claims, prover)


def unchecked_statements(papers: Sequence[str]) -> tuple[Omission, ...]:
    """What those papers say that no computer can check, and what was taken from others."""
    return (*(omission for name in chosen_papers(papers) for omission in load_paper(name).unchecked), CITED)


def surprises(rows: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """Rows that came out otherwise than the book expects, but for those that are undecided."""
    return [row for row in rows if row.judgement.outcome is not row.claim.expected and not row.undecided]
