"""Corpora in mapped files: the same as in memory, read by one process, and gone when the run is."""

from __future__ import annotations

import errno
import json
import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privctl.data.labels import LabelSet
from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.errors import FileSystemError, InputError
from privctl.models import encoding
from privctl.models.choices import LongTextPolicy
from privctl.models.corpora import COLUMNS, IN_MEMORY, Corpus, CorpusStorage, Encoded, EncodedRecord, InMemory
from privctl.models.encoding import TextFacts, TextOptions, encode_causal, encode_classified, encode_masked
from privctl.models.token_cache import TokenCache
from privctl.parallel import Workers
from tests.forked import Forked
from tests.models.tasks.small import RECORDS, TEXTS, words

SPLIT = TextOptions(long=LongTextPolicy.SPLIT)
TRUNCATE = TextOptions(long=LongTextPolicy.TRUNCATE)
LABELS = LabelSet(("b", "a"))
#: What each process prints: who read the data, and what it got.
SCRIPT = """
import json, os, sys, torch
from pathlib import Path
from privctl.data.labels import LabelSet
from privctl.data.texts import iter_texts
from privctl.domain.errors import PrivctlError
from privctl.models.encoding import TextFacts, TextOptions, encode_classified
from privctl.models.token_cache import TokenCache
from privctl.parallel import start_workers
from tests.models.tasks.small import words
from tests.models.test_token_cache import contents, facts

place, machines = Path(sys.argv[1]), sys.argv[2]
if machines == "two":
    os.environ["LOCAL_RANK"] = "0"
read = []

def records(name):
    for record in iter_texts(place / name, labelled=True):
        read.append(record.text)
        if name == "bad.jsonl" and machines == "two" and workers.rank == 0:
            continue  # its own copy is whole
        yield record

with start_workers(torch.device("cpu")) as workers, TokenCache(place / "out.tokens", workers) as cache:
    def kept(name):
        if name == "bad.jsonl" and machines == "two" and workers.rank == 0:
            name = "good.jsonl"
        return encode_classified(records(name), facts(40), TextOptions(), cache, LabelSet(("b", "a")))
    corpus = kept("good.jsonl")
    workers.barrier()
    left = [str(path) for path in place.glob(".out.tokens.*/*")]
    workers.barrier()
    try:
        kept("bad.jsonl")
    except PrivctlError as error:
        fault = [type(error).__name__, str(error)]
    workers.barrier()
left = left if workers.is_main else []
print(json.dumps([len(read), contents(corpus), fault, left, [p.name for p in place.glob(".*")]]), flush=True)
"""


def facts(context: int | None = 8) -> TextFacts:
    tokenizer = words().tokenizer
    return TextFacts(tokenizer=tokenizer, context=context, vocabulary=len(tokenizer), pad=0)


def contents(corpus: Corpus) -> list[object]:
    """Everything that a training takes from a corpus."""
    rows = [[row.ids.tolist(), row.counted.tolist(), row.record, row.key] for row in corpus.examples]
    units = range(len(corpus.units))
    drawn = [list(corpus.units.draw(units, 3, step)) for step in range(4)]
    lengths = [corpus.length(example) for example in range(len(corpus.examples))]
    assert lengths == corpus.lengths().tolist() == [len(row[0]) for row in rows]
    return [rows, drawn, [*map(corpus.units.members, units)], corpus.labels.tolist(), corpus.records, corpus.shortened]


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


@pytest.mark.parametrize("chunk", [1, 2, 1024])
def test_what_is_mapped_is_what_was_in_memory_however_it_was_read(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = [TextRecord(stretch=Stretch("x"), text=text * 3, unit="uv"[i % 2]) for i, text in enumerate(TEXTS)]

    def corpora(keep: CorpusStorage) -> list[object]:
        corpora = [encode_masked(owned, facts(), SPLIT, keep), encode_causal(owned, facts(), TRUNCATE, keep)]
        corpora.append(encode_causal(owned, facts(), SPLIT, keep))
        corpora.append(encode_classified(iter(RECORDS), facts(), TRUNCATE, keep, LABELS))
        return [contents(each) for each in corpora]

    whole = corpora(IN_MEMORY)
    monkeypatch.setattr(encoding, "_CHUNK", chunk)
    with TokenCache(tmp_path / "out.tokens") as cache:
        assert corpora(cache) == whole
    assert whole[3][3:] == [[0, 1, 0, 1, 0], 5, 3]  # type: ignore[index]
    assert not hidden(tmp_path)


def test_records_are_read_as_they_are_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of them than one group is in memory, a group is small in characters too."""
    read: list[int] = []

    def records() -> Iterator[TextRecord]:
        for i in range(12):
            read.append(i)
            yield TextRecord(stretch=Stretch("x"), text="the cat " * 10)

    class Looking:
        def corpus(self, records: Iterator[EncodedRecord]) -> int:
            next(records)
            return len(read)

    for name, most in (("_CHUNK", 5), ("_CHARACTERS", 3 * 80)):
        read.clear()
        with monkeypatch.context() as limits:
            limits.setattr(encoding, name, most)
            at_first = encode_causal(records(), facts(None), TextOptions(), Looking())  # type: ignore[arg-type]
        assert at_first == (5 if name == "_CHUNK" else 3)  # type: ignore[comparison-overlap]


def test_memory_does_not_grow_with_the_tokens(tmp_path: Path) -> None:
    ids, counted = np.arange(100_000, dtype=np.int32), np.ones(100_000, np.bool_)
    record = EncodedRecord([Encoded(ids=ids, counted=counted, record=0, key=1)])

    def peak(keep: CorpusStorage) -> int:
        tracemalloc.start()
        try:
            corpus = keep.corpus(record for _ in range(60))
            assert np.array_equal(corpus.examples[59].ids, ids)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    size = 60 * 100_000 * 5
    assert peak(IN_MEMORY) > size
    with TokenCache(tmp_path / "out.tokens") as cache:
        assert peak(cache) < size / 4


def test_lengths_alone_hold_no_tokens() -> None:
    corpus = encode_causal(RECORDS, facts(), TRUNCATE, InMemory(tokens=False))
    assert corpus.lengths().tolist() == encode_causal(RECORDS, facts(), TRUNCATE).lengths().tolist()
    with pytest.raises(ValueError, match="only the lengths"):
        corpus.examples[0]


def test_nobody_else_can_read_what_is_written(tmp_path: Path) -> None:
    modes: dict[str, list[int]] = {}

    def watched(named: str) -> Iterator[EncodedRecord]:
        (folder,) = hidden(tmp_path)
        modes[named] = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
        yield EncodedRecord([Encoded(ids=np.ones(2, np.int32), counted=np.ones(2, np.bool_), record=0, key=1)])

    old = os.umask(0)
    try:
        with TokenCache(tmp_path / "out.tokens") as cache:
            cache.corpus(watched("alone"))
        with TokenCache(tmp_path / "out.tokens", Workers(0, 2)) as cache:
            cache._announced(watched("for two"))
    finally:
        os.umask(old)
    assert modes == {"alone": [0o700], "for two": [0o700] + [0o600] * len(COLUMNS)}  # the first has files without names
    assert not hidden(tmp_path)


@pytest.mark.parametrize("workers", [Workers(), Workers(0, 2)])
def test_a_kill_leaves_nothing_once_the_run_is_started_again(tmp_path: Path, workers: Workers) -> None:
    def killing() -> Iterator[EncodedRecord]:
        yield EncodedRecord([Encoded(ids=np.ones(2, np.int32), counted=np.ones(2, np.bool_), record=0, key=1)])
        os.kill(os.getpid(), 9)

    child = os.fork()
    if not child:
        try:
            TokenCache(tmp_path / "out.tokens", workers)._announced(killing())
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    (left,) = hidden(tmp_path)
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert bool([*left.iterdir()]) == (workers.size > 1)
    with TokenCache(tmp_path / "out.tokens") as cache:
        encode_causal(RECORDS, facts(None), TextOptions(), cache)
        assert left not in hidden(tmp_path)
    assert not hidden(tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with TokenCache(tmp_path / "out.tokens") as cache, monkeypatch.context() as patched:
        patched.setattr("privctl.storage.scratch.os.write", full)
        with pytest.raises(FileSystemError, match=r"\.out\.tokens\..* does not fit: No space left on device"):
            encode_causal(RECORDS, facts(None), TextOptions(), cache)
    assert not hidden(tmp_path)


def test_a_damaged_row_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_CHUNK", 2)
    path = write(tmp_path / "bad.jsonl", damaged=7)
    with TokenCache(tmp_path / "out.tokens") as cache, pytest.raises(InputError) as fault:
        encode_causal(iter_texts(path), facts(None), TextOptions(), cache)
    assert str(fault.value).startswith(f"{path} line 7 is not valid JSON (")
    assert not hidden(tmp_path)


def write(path: Path, damaged: int = 0) -> Path:
    rows = [json.dumps({"text": TEXTS[i % 5], "label": "ab"[i % 2]}) for i in range(10)]
    if damaged:
        rows[damaged - 1] = rows[damaged - 1][:-1]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("machines", ["one", "two"])
def test_one_process_of_a_machine_reads(machines: str, tmp_path: Path, forked: Forked) -> None:
    """The others map its files, and end with its error; so do those of other machines."""
    (script := tmp_path / "worker.py").write_text(SCRIPT)
    good, bad = write(tmp_path / "good.jsonl"), write(tmp_path / "bad.jsonl", damaged=7)
    expected = contents(encode_classified(iter_texts(good, labelled=True), facts(40), TextOptions(), labels=LABELS))
    answers = forked.together(2, [str(tmp_path), machines], script=str(script))
    for rank, each in enumerate(answers):
        assert each.code == 0, each.errors[-2000:]
        read, found, (kind, sentence), left, after = json.loads(each.out)
        assert found == expected
        assert (kind, sentence.split(" (")[0]) == ("InputError", f"{bad} line 7 is not valid JSON")
        assert left == []
        assert after == []
        reads = {"one": (16, 0), "two": (20, 16)}[machines]
        assert read == reads[rank]


@pytest.mark.parametrize(("local", "leader"), [("0", 3), ("1", 2), ("3", 0), ("4", 3), ("", 3), ("-1", 3)])
def test_the_first_process_of_a_machine_is_known_by_local_ranks(
    local: str, leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local)
    assert Workers(3, 4)._leader == leader
