"""Labels of words and answers to questions: losses and measures by definition, alignment as transformers has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, processors
from torch import Tensor, nn
from transformers import pipeline
from transformers.models.longformer.modeling_longformer import _compute_global_attention_mask

from privctl.data.annotated import annotated
from privctl.data.columns import Columns, HeadKind
from privctl.data.texts import read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.encoding import TextOptions
from privctl.models.loading import load_for_training
from privctl.models.tasks.answers import QuestionAnswering, best_span, question_mask, squad_measures
from privctl.models.tasks.build import text_task
from privctl.models.tasks.words import WordClassification, entities_in, name_entities
from tests.models.tasks.annotated import NAMES, QUESTIONS, WORDS, model_for, records, save, write
from tests.models.tasks.small import one_by_one
from tests.train.clipping.support import agree
from tests.zoo.shrink import build

CPU = torch.device("cpu")
TOKENS, ASKED = TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_labels_are_at_the_first_tokens_of_words_and_losses_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    model = model_for(tmp_path / "m", TOKENS, kind)
    task, order = text_task(model, records(tmp_path / "a.jsonl", TOKENS)), [3, 1, 2, 0]
    assert isinstance(task, WordClassification)
    batch = task.batch(order, CPU, 0)
    found = task.losses(model.network, batch).detach()
    assert torch.allclose(found, one_by_one(task, model.network, order, 0), atol=1e-5)
    for index, i in enumerate(order):
        words, tags = WORDS[i]
        encoding = model.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        assert batch["input_ids"][index].tolist()[: encoding["input_ids"].shape[1]] == encoding["input_ids"][0].tolist()
        word_ids = encoding.word_ids(0)
        labels = [
            -100 if word is None or word == before else NAMES.index(tags[word])
            for word, before in zip(word_ids, [None, *word_ids], strict=False)
        ]
        assert sum(label >= 0 for label in labels) == len(words) < len(labels)
        inputs = {name: encoding[name] for name in ("input_ids", "attention_mask")}
        theirs = model.network(**inputs, labels=torch.tensor([labels])).loss.item()
        assert found[index].item() == pytest.approx(theirs, abs=1e-5)

    def losses(network: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return task.losses(network, rows)

    agree(model.network, losses, batch)


def test_the_measures_of_words_are_those_of_the_pipeline(tmp_path: Path) -> None:
    from sklearn.metrics import accuracy_score

    folder, path = save(tmp_path / "m", TOKENS), tmp_path / "a.jsonl"
    model = model_for(tmp_path / "n", TOKENS)
    measured = text_task(model, records(path, TOKENS)).evaluate(model.network, CPU)
    pipe = pipeline("token-classification", str(folder), device="cpu", aggregation_strategy="none")
    predicted, true, both, sizes = [], [], 0, 0
    for words, tags in WORDS:
        text = " ".join(words)
        at = {each["start"]: each["entity"] for each in pipe(text)}  # leaves out O
        begins = [len(" ".join(words[:i])) + bool(i) for i in range(len(words))]
        guesses = [at.get(begin, "O") for begin in begins]
        found, there = entities_in(guesses), entities_in(tags)
        both, sizes = both + len(found & there), sizes + len(found) + len(there)
        predicted += guesses
        true += tags
    assert len(set(predicted)) > 1
    assert measured["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert measured["tokens"] == len(true)
    assert measured["entity_f1"] == pytest.approx(2 * both / sizes)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [  # the examples of seqeval's documentation, and the rules of conlleval one by one
        (["B-PER", "I-PER", "O", "B-LOC"], {("PER", 0, 2), ("LOC", 3, 4)}),
        (["O", "I-LOC", "I-LOC", "I-PER"], {("LOC", 1, 3), ("PER", 3, 4)}),
        (["B-LOC", "B-LOC", "I-LOC"], {("LOC", 0, 1), ("LOC", 1, 3)}),
        (["B-LOC", "E-LOC", "I-LOC", "S-LOC", "E-LOC"], {("LOC", 0, 2), ("LOC", 2, 3), ("LOC", 3, 4), ("LOC", 4, 5)}),
        (["I-LOC", "O", "I-LOC"], {("LOC", 0, 1), ("LOC", 2, 3)}),
        (["O", "O"], set()),
        (["B-A-B", "I-A-B"], {("A-B", 0, 2)}),
    ],
)
def test_entities_are_read_from_labels(labels: list[str], expected: set[tuple[str, int, int]]) -> None:
    assert entities_in(labels) == expected


def test_labels_of_entities_are_told_from_others() -> None:
    assert name_entities(NAMES)
    assert not name_entities(("NOUN", "VERB"))
    assert not name_entities(("O", "B"))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_answers_are_found_among_tokens_and_losses_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = model_for(tmp_path / "m", ASKED, kind, max_position_embeddings=80)
    task, order = text_task(model, records(tmp_path / "a.jsonl", ASKED)), [2, 0, 3, 1]
    assert isinstance(task, QuestionAnswering)
    batch = task.batch(order, CPU, 0)
    found = task.losses(model.network, batch).detach()
    assert torch.allclose(found, one_by_one(task, model.network, order, 0), atol=1e-5)
    for index, i in enumerate(order):
        each = QUESTIONS[i]
        encoding = model.tokenizer(each["question"], each["context"], return_tensors="pt")
        length = encoding["input_ids"].shape[1]
        assert batch["input_ids"][index].tolist()[:length] == encoding["input_ids"][0].tolist()
        assert batch["token_type_ids"][index].tolist()[:length] == encoding["token_type_ids"][0].tolist()
        stated = each.get("answers", {"text": [each.get("answer")], "answer_start": [each.get("answer_start")]})
        first, last = batch["positions"][index].tolist()
        if stated["text"]:
            begin, text = stated["answer_start"][0], stated["text"][0]
            assert first == encoding.char_to_token(begin, sequence_index=1)
            assert last == encoding.char_to_token(begin + len(text) - 1, sequence_index=1)
        else:
            assert (first, last) == (0, 0)
        ends = {"start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])}
        assert found[index].item() == pytest.approx(model.network(**encoding, **ends).loss.item(), abs=1e-5)

    def losses(network: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return task.losses(network, rows)

    agree(model.network, losses, batch)


def test_longformer_attends_from_the_question_as_transformers_lets_it(tmp_path: Path) -> None:
    build("question-answering", "longformer", tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    tokenizer.save(str(tmp_path / "m" / "tokenizer.json"))
    model = load_for_training(tmp_path / "m", ASKED)
    asked = [{"question": "w1" + " w2" * i, "context": "w3 w4 w5", "answer": "w4", "answer_start": 3} for i in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, asked)))
    read = read_texts(tmp_path / "a.jsonl", labelled=True, columns=Columns(problem=HeadKind.SPAN))
    task = text_task(model, read)
    batch = task.batch((0, 1, 2), CPU, 0)
    found = task.losses(model.network.eval(), batch).detach()
    for each, loss, (first, last) in zip(asked, found.tolist(), batch["positions"], strict=True):
        encoding = model.tokenizer(each["question"], each["context"], return_tensors="pt")
        theirs = model.network(**encoding, start_positions=first[None], end_positions=last[None]).loss.item()
        assert loss == pytest.approx(theirs, abs=1e-5)


def test_no_record_s_question_ends_in_another_record() -> None:
    """Transformers counts separators over the batch, so that one too many is taken for the next record's."""
    usual = torch.tensor([[2, 7, 3, 3, 8, 8, 3], [2, 7, 7, 3, 3, 8, 3]])
    inputs = {"input_ids": usual, "attention_mask": torch.ones_like(usual)}
    assert torch.equal(question_mask(inputs, 3), _compute_global_attention_mask(usual, 3).long())
    odd = torch.tensor([[2, 7, 3, 3, 3, 8, 3], [2, 7, 7, 3, 8, 8, 3]])
    found = question_mask({"input_ids": odd, "attention_mask": torch.ones_like(odd)}, 3)
    assert found.tolist() == [[1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0]]
    assert not torch.equal(found[1], _compute_global_attention_mask(odd, 3)[1].long())


def test_the_measures_of_answers_by_definition(tmp_path: Path) -> None:
    """Against a search of all answers by loops, and the words of SQuAD's script."""
    model = model_for(tmp_path / "m", ASKED, max_position_embeddings=80)
    task = text_task(model, records(tmp_path / "a.jsonl", ASKED))
    assert isinstance(task, QuestionAnswering)
    exact, f1 = [], []
    for question in QUESTIONS:
        encoding = model.tokenizer(
            question["question"], question["context"], return_tensors="pt", return_offsets_mapping=True
        )
        spans = encoding.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            answer = model.network.eval()(**encoding)
        start, end = answer.start_logits[0].double().tolist(), answer.end_logits[0].double().tolist()
        inside = [i for i, sequence in enumerate(encoding.sequence_ids(0)) if sequence == 1]
        best = max((start[s] + end[e], s, e) for s in inside for e in inside if s <= e < s + 30)
        predicted_answer = (
            "" if start[0] + end[0] > best[0] else question["context"][spans[best[1]][0] : spans[best[2]][1]]
        )
        answers = question["answers"]["text"] if "answers" in question else [question["answer"]]
        one, two = squad_measures(predicted_answer, answers)
        exact.append(one)
        f1.append(two)
    measured = task.evaluate(model.network, CPU)
    assert measured["exact_match"] == np.mean(exact)
    assert measured["f1"] == pytest.approx(np.mean(f1))
    assert measured["examples"] == 4
    with torch.no_grad():
        expected = one_by_one(task, model.network, range(4), 0).mean().item()
    assert measured["loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("answer", "answers", "expected"),
    [
        ("The Cat!", ["cat", "dog"], (1, 1)),
        ("old cat", ["a cat", "an old dog"], (0, 2 / 3)),
        ("cat cat dog", ["cat"], (0, 0.5)),
        ("", [], (1, 1)),
        ("cat", [], (0, 0)),
        ("", ["cat"], (0, 0)),
        ("the", ["cat"], (0, 0)),
    ],
)
def test_words_of_answers(answer: str, answers: list[str], expected: tuple[float, float]) -> None:
    assert squad_measures(answer, answers) == pytest.approx(expected)


def test_the_best_answer_is_in_order_short_and_in_the_context() -> None:
    logits, context = np.zeros((40, 2), np.float32), np.arange(40) >= 2
    logits[0] = 9
    logits[30, 0], logits[4, 1] = 5, 5  # would end before it starts
    logits[5, 0], logits[39, 1], logits[34, 1] = 5, 5, 1  # 35 tokens, and 30
    assert best_span(logits, context) == (28, 37)
    logits[39, 1] = 0
    assert best_span(logits, context) == (3, 32)
    assert best_span(logits, context, 0) is None
    assert best_span(logits, context, 1) == (3, 32)


@pytest.mark.parametrize("task", [TOKENS, ASKED])
def test_long_records_are_cut_and_counted(tmp_path: Path, task: TaskName) -> None:
    model = model_for(tmp_path / "m", task, max_position_embeddings=80)
    read = records(tmp_path / "a.jsonl", task)
    limit = 24 if task is ASKED else 12
    limited_task: Any = text_task(model, read, TextOptions(long=LongTextPolicy.TRUNCATE, max_length=limit))
    assert max(limited_task.corpus.lengths()) == limit
    assert 0 < limited_task.corpus.shortened < len(read)
    if task is ASKED:  # where the answer is cut off, it is the classification token
        positions = limited_task.batch([0, 1], CPU, 0)["positions"].tolist()
        assert positions[1] == [0, 0]
    with pytest.raises(InputError, match="tokens where the limit is"):
        text_task(model, read, TextOptions(max_length=limit))
    with pytest.raises(CommandError, match="--long split would part a record from"):
        text_task(model, read, TextOptions(long=LongTextPolicy.SPLIT))


def test_a_question_without_room_for_its_context_is_refused(tmp_path: Path) -> None:
    model = model_for(tmp_path / "m", ASKED)
    with pytest.raises(InputError, match="line 1 has a question so long that no token of its context is left"):
        text_task(
            model,
            records(tmp_path / "a.jsonl", ASKED),
            TextOptions(long=LongTextPolicy.TRUNCATE, max_length=8),
        )


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "has 2 words in 'tokens' and 1 label in 'ner_tags'"),
        ({"tokens": [], "ner_tags": []}, "has no words in 'tokens'; remove the record"),
        ({"tokens": ["a", ""], "ner_tags": ["O", "O"]}, "word 2 has an empty 'tokens'"),
        ({"tokens": ["New York"], "ner_tags": ["O"]}, "word 1 has a space in it"),
        ({"tokens": ["a", 3], "ner_tags": ["O", "O"]}, "word 2 has a number as 'tokens'"),
        ({"tokens": "a b", "ner_tags": ["O", "O"]}, "has a string as 'tokens'; expected a list"),
        ({"tokens": ["a"], "ner_tags": [None]}, "word 1 has null as 'ner_tags'"),
        ({"tokens": ["a"]}, "lacks 'ner_tags', which the task token-classification needs"),
        ({"text": "a"}, "lacks 'tokens', which the task token-classification needs"),
    ],
)
def test_records_of_words_that_are_none(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        annotated(fields, "a.jsonl line 1", Columns(problem=HeadKind.TOKENS))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"answer": "Paris", "answer_start": 0}, "'Paris', which does not start at .* 0 .*; it is not in the context"),
        ({"answer": "Rome", "answer_start": 20}, "does not start at character 20 of its context; it starts at 21"),
        ({"answer": "Rome", "answer_start": -1}, "does not start at character -1"),
        ({"answer": "", "answer_start": 0}, "answer has an empty 'text'"),
        ({"answer": "Rome", "answer_start": None}, "has null as 'answer_start'"),
        ({"answers": {"text": ["Rome"], "answer_start": []}}, "has 1 answer and 0 places where they start"),
        ({"answers": "Rome"}, "has a string as 'answers'"),
        ({}, "lacks 'answers', which the task question-answering needs"),
        ({"context": " ", "answers": {"text": [], "answer_start": []}}, "has an empty 'context'"),
        ({"question": 3}, "lacks 'answers'"),
    ],
)
def test_records_of_questions_that_are_none(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        annotated(
            {**{name: QUESTIONS[0][name] for name in ("question", "context")}, **fields},
            "a.jsonl line 1",
            Columns(problem=HeadKind.SPAN),
        )


def test_a_label_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    model, path = model_for(tmp_path / "m", TOKENS), tmp_path / "a.jsonl"
    path.write_text(json.dumps({"words": ["Rome"], "labels": ["B-TOWN"]}) + "\n")
    read = read_texts(path, columns=Columns(problem=HeadKind.TOKENS))
    with pytest.raises(InputError, match="line 1 has the label 'B-TOWN', which is not one of 'O', 'B-LOC'"):
        text_task(model, read)


def test_other_forms_of_questions() -> None:
    one = {"question": "q", "context": "a b", "answers": [{"text": "b", "answer_start": 2}]}
    two = {"question": "q", "context": "a b", "answer": "b", "answer_start": "2"}
    columns = Columns(problem=HeadKind.SPAN)
    assert annotated(one, "a", columns) == annotated(two, "a", columns)
    passage, stated = annotated(one, "a", columns)
    assert (passage.text, passage.start, stated) == ("q\na b", 2, '[[2, "b"]]')


def test_words_in_columns_of_other_names(tmp_path: Path) -> None:
    columns = Columns(problem=HeadKind.TOKENS, text="form", label="pos")
    passage, stated = annotated({"form": ["a", "b"], "pos": [0, "NOUN"], "tokens": 3}, "a", columns)
    assert (passage.text, stated) == ("a b", '["0", "NOUN"]')
    assert columns.wanted("person") == {"form", "pos", "person"}
    assert write(tmp_path / "a.jsonl", TOKENS).exists()
