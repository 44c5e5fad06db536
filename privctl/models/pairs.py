"""Encoding of pairs of texts for an encoder-decoder: a source that is read, and a target that is predicted.

An example of a corpus holds the source followed by the target, whose tokens are the counted ones; ``split`` separates
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy
from privctl.models.corpora import IN_MEMORY, Corpus, CorpusStorage, Encoded, EncodedRecord
from privctl.models.encoding import RecordsWithoutTokens, TextFacts, TextOptions, length_limit
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.base import evaluation_mode
from privctl.models.tasks.units import content_key

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: Pairs per call of the tokenizer.
_CHUNK = 256


def encode_pairs(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, keep: CorpusStorage = IN_MEMORY
) -> Corpus:
    """Examples for a sequence-to-sequence model, tokenized a few at a time and stored by ``keep``.

    The limit on tokens applies to source and target separately. Raises InputError for a text that is too long (unless
    ``options.long`` allows it), or for all that are empty; CommandError for ``LongTextPolicy.SPLIT``.
    """
    if options.long is LongTextPolicy.SPLIT:
        raise CommandError("--long split would part a source from its target; choose truncate")
    return keep.corpus(_encoded(records, facts, options.long, length_limit(facts, options)))


def split(row: Encoded) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(source ids, target ids) of an example."""
    begin = int(row.counted.argmax())
    return row.ids[:begin], row.ids[begin:]


def joined(source: Sequence[int], target: Sequence[int], record: int) -> Encoded:
    """The example made of a source and a target; the inverse of ``split``."""
    ids = np.asarray([*source, *target], np.int32)
    counted = np.arange(len(ids)) >= len(source)
    return Encoded(ids=ids, counted=counted, record=record, key=content_key(ids.tobytes(), counted.tobytes()))


def tokenise_pairs(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
    """(source ids, target ids) of each pair, with the tokenizer's special tokens and without truncation.

    The end-of-text token, if there is one, is appended to a target that lacks it.
    """
    for start in range(0, len(pairs), _CHUNK):
        sources, targets = map(list, zip(*pairs[start : start + _CHUNK], strict=True))
        with quiet_transformers():
            source_ids = tokenizer(sources, truncation=False)["input_ids"]
            target_ids = tokenizer(text_target=targets, truncation=False)["input_ids"]
        for source, target in zip(source_ids, target_ids, strict=True):
            end = tokenizer.eos_token_id
            yield source, target if end is None or end in target else [*target, end]


def cut_pair(
    tokenizer: Any, texts: tuple[str, str], ids: tuple[list[int], list[int]], limit: int
) -> tuple[list[int], list[int]]:
    """The ``ids`` of source and target, each truncated to ``limit`` tokens including special ones if it is longer."""
    source, target = ids
    with quiet_transformers():
        if len(source) > limit:
            source = tokenizer(texts[0], truncation=True, max_length=limit)["input_ids"][:limit]
        if len(target) > limit:
            target = tokenizer(text_target=texts[1], truncation=True, max_length=limit)["input_ids"][:limit]
    return source, target


def decoder_start(path: Path, network: Any) -> int | None:
    """The decoder's first input id; None if the target's last token is moved to the front, as in mBART.

    Found by running ``network`` on labels, which it shifts itself. Raises InputError if it does not shift them by one.
    """
    device = next(network.parameters()).device
    captured: list[torch.Tensor] = []
    starts: list[int] = []
    labels = (torch.tensor([[5, 6, 7]], device=device), torch.tensor([[6, 5, 4]], device=device))
    handle = network.get_decoder().register_forward_pre_hook(
        lambda _, given, named: captured.append(named.get("input_ids", given[0] if given else None)), with_kwargs=True
    )
    try:
        with evaluation_mode(network):
            for label in labels:
                network(input_ids=label, attention_mask=torch.ones_like(label), labels=label)
    except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{path} ({network.config.model_type}) fails on made-up source and target: "
            f"{' '.join(str(error).split())[:200]}; check its config.json, such as decoder_start_token_id"
        ) from None
    finally:
        handle.remove()
    for given, label in zip(captured, labels, strict=True):
        if given is None or given.shape != label.shape or not torch.equal(given[:, 1:], label[:, :-1]):
            raise InputError(
                f"{path} ({network.config.model_type}) does not give its decoder the target shifted by one; give a "
                "model such as T5 or BART"
            )
        starts.append(int(given[0, 0]))
    if starts == [int(each[0, -1]) for each in labels]:
        return None
    return starts[0]


def decoder_inputs(targets: NDArray[np.int64], lengths: Sequence[int], start: int | None) -> NDArray[np.int64]:
    """The decoder's inputs (n, length): padded ``targets`` (n, length) with ``lengths`` real tokens, shifted by one."""
    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = [targets[i, length - 1] for i, length in enumerate(lengths)] if start is None else start
    return shifted


def _encoded(
    records: Iterable[TextRecord], facts: TextFacts, long: LongTextPolicy, limit: int | None
) -> Iterator[EncodedRecord]:
    index = 0
    chunk: list[TextRecord] = []
    without = {name: RecordsWithoutTokens(f"in its {name}", f"in their {name}") for name in ("source", "target")}
    for record in records:
        chunk.append(record)
        if len(chunk) == _CHUNK:
            yield from _chunk(chunk, facts, long, limit, index, without)
            index += len(chunk)
            chunk = []
    yield from _chunk(chunk, facts, long, limit, index, without)
    for each in without.values():
        each.refuse()


def _chunk(
    records: Sequence[TextRecord],
    facts: TextFacts,
    long: LongTextPolicy,
    limit: int | None,
    index: int,
    without: Mapping[str, RecordsWithoutTokens],
) -> Iterator[EncodedRecord]:
    tokenised = tokenise_pairs(facts.tokenizer, [record.pair for record in records])
    for number, (record, pair) in enumerate(zip(records, tokenised, strict=True), start=index):
        source, target = pair
        shortened = False
        for name, ids in (("source", source), ("target", target)):
            if not ids:
                without[name].add(record, len(source) + len(target))
                continue
            if max(ids) >= facts.vocabulary:
                raise InputError(
                    f"{record.where} has the token id {max(ids)}, and the model knows ids below {facts.vocabulary}; "
                    "use the model's own tokenizer"
                )
            if limit is not None and len(ids) > limit:
                if long is LongTextPolicy.REFUSE:
                    raise InputError(
                        f"{record.where} has {len(ids)} tokens in its {name} where the limit is {limit}; give --long "
                        "truncate, or shorten it"
                    )
                shortened = True
        if not source or not target:
            continue
        if shortened and limit is not None:
            source, target = cut_pair(facts.tokenizer, record.pair, pair, limit)
        yield EncodedRecord([joined(source, target, number)], record.unit, shortened=shortened)
