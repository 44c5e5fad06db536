"""Public records that are mixed into a private training: held against the private ones, and how many a step takes."""

from __future__ import annotations

from privctl.data.contents import first_shared
from privctl.domain.errors import CommandError
from privctl.parallel import Workers
from privctl.train.preparation.reading import contents_at
from privctl.train.settings.choices import PublicOverlap
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.request import RetrainRequest


def require_apart(request: RetrainRequest, workers: Workers) -> None:
    """Raise CommandError where a public record stands among the private ones, unless it may (``PublicOverlap``).

    No record is left out instead: which public ones take part would then depend on private ones. All ``workers`` must
    ask. Raises as the reading of either does.
    """
    asked = request.public
    if asked is None or asked.overlap is PublicOverlap.KEEP:
        return

    def compared() -> bytes:
        public, private = contents_at(request, asked.data), contents_at(request, request.data.train)
        if (place := first_shared(public, private)) is not None:
            raise CommandError(
                f"record {place} of --public {asked.data} stands in --data {request.data.train} too, case and white "
                "space aside, so one of the two is not what it is taken for; leave what is private out of the public "
                "records, or add --public-overlap keep if all of them are public all the same"
            )
        return b""

    workers.once_a_machine(compared)


def mixing_of(request: RetrainRequest, records: int, batch_size: float) -> PublicMixing | None:
    """How the step mixes so many public ``records`` in, beside an expected private ``batch_size``; None without any.

    Raises CommandError for numbers that are out of range.
    """
    asked = request.public
    if asked is None:
        return None
    size = min(records, max(1, round(batch_size))) if asked.batch_size is None else asked.batch_size
    try:
        return PublicMixing(weight=asked.weight, batch_size=size, records=records, overlap=asked.overlap)
    except ValueError as error:
        raise CommandError(str(error)) from None
