"""Reads the records of a training request for its task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from privctl.data.contents import array_content, first_shared, text_content
from privctl.data.images import ImageSet, read_images
from privctl.data.several import DataPath
from privctl.data.sounds import SoundSet, read_sounds
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.chat import chat_of
from privctl.models.choices import CLASSIFICATION, NOT_ON_TEXTS, TaskName
from privctl.models.language import read_config
from privctl.models.purpose import problem_of
from privctl.models.quiet import quiet_transformers
from privctl.models.sounds import sound_facts
from privctl.parallel import Workers
from privctl.train.settings.choices import PublicOverlap
from privctl.train.settings.request import RetrainRequest


def texts_at(
    request: RetrainRequest, path: DataPath, unit: str | None = None, *, shared: bool = False
) -> Iterator[TextRecord]:
    """The texts at ``path``, one at a time. Raises as ``iter_texts`` does."""
    columns = replace(
        request.data.columns,
        chat=chat_of(request.model.path, request.model.adapter),
        pair=request.task is TaskName.SEQ2SEQ_LM,
        problem=problem_of(request.model.path, request.task),
    )
    return iter_texts(path, labelled=request.task in CLASSIFICATION, columns=columns, unit=unit, shared=shared)


def images_at(request: RetrainRequest, path: DataPath) -> ImageSet:
    """The images at ``path``, in memory; raises as ``read_images`` does."""
    columns = replace(request.data.columns, problem=problem_of(request.model.path, request.task))
    return read_images(path, channels=_channels(request.model.path), resize=request.data.resize, columns=columns)


def sounds_at(request: RetrainRequest, path: DataPath) -> SoundSet:
    """The sounds at ``path``, in memory; raises as ``read_sounds`` does."""
    columns = replace(request.data.columns, problem=problem_of(request.model.path, request.task))
    return read_sounds(path, rate=sampling_rate(request.model.path), columns=columns)


def contents_at(request: RetrainRequest, path: DataPath) -> Iterator[bytes]:
    """A digest of each record at ``path`` without its label, to find duplicates. Raises as reading the data does."""
    if request.task is TaskName.IMAGE_CLASSIFICATION:
        yield from map(array_content, images_at(request, path).pixels)
    elif request.task is TaskName.AUDIO_CLASSIFICATION:
        yield from map(array_content, sounds_at(request, path).waves)
    else:
        yield from (text_content(record.text) for record in texts_at(request, path))


def require_apart(request: RetrainRequest, workers: Workers) -> None:
    """Raise CommandError if a public record is also among the private ones, unless ``PublicOverlap`` allows it.

    Such records are not just left out, as the choice of public records would then depend on private ones. All
    ``workers`` must call this. Raises as reading the data does.
    """
    public = request.public
    if public is not None and public.overlap is not PublicOverlap.KEEP:
        or_keep = ", or add --public-overlap keep if all of them are public all the same"
        require_none_private(request, public.data, "--public", workers, otherwise=or_keep)


def require_none_private(
    request: RetrainRequest, public: DataPath, flag: str, workers: Workers, *, otherwise: str = ""
) -> None:
    """Raise CommandError if a record of ``public``, given with ``flag``, is also among the private ones.

    Where users are protected, also for another record of one of them, if the public records name users in the same
    field. ``otherwise`` ends the message with an alternative. All ``workers`` must call this. Raises as reading the
    data does.
    """
    aside = "" if request.task in NOT_ON_TEXTS else ", case and white space aside"

    def compared() -> bytes:
        contents, private = contents_at(request, public), contents_at(request, request.data.train)
        if (place := first_shared(contents, private)) is not None:
            raise CommandError(
                f"record {place} of {flag} {public} is in --data {request.data.train} too{aside}, and no record is "
                f"both public and private; leave what is private out of {flag}{otherwise}"
            )
        if names_private_user(request, public):
            raise CommandError(
                f"{flag} {public} holds records of a {request.data.unit!r} whose records are in --data "
                f"{request.data.train}, and all that a user has is protected; leave such users out of {flag}{otherwise}"
            )
        return b""

    workers.once_per_machine(compared)


def names_private_user(request: RetrainRequest, public: DataPath) -> bool:
    """Whether users are protected and ``public`` has records of one of them, named in the same field.

    False where a record of ``public`` names no user there. Raises as reading the private data does.
    """
    if (unit := request.data.unit) is None:
        return False
    users: set[str] = set()
    try:
        for each in texts_at(request, public, unit, shared=True):
            users.update(each.users)
    except InputError:
        return False
    private = texts_at(request, request.data.train, unit, shared=True)
    return any(not users.isdisjoint(each.users) for each in private)


def sampling_rate(path: Path) -> int:
    """The sampling rate in Hz of the sounds that the model at ``path`` takes."""
    folder = path if path.is_dir() else path.parent
    with quiet_transformers():
        return sound_facts(folder, read_config(folder, path)).rate


def _channels(path: Path) -> int:
    """The number of image channels in the model's config.json; 3 by default."""
    folder = path if path.is_dir() else path.parent
    with quiet_transformers():
        channels = getattr(read_config(folder, path), "num_channels", 3)
    return channels if channels in (1, 3) else 3
