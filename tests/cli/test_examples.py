"""Every example of every ``--help`` does what it shows, on small files with the names it uses."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import string
from collections.abc import Iterable, Iterator
from glob import glob
from itertools import pairwise
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from audits.canaries.manifest import read_manifest
from privctl.cli import root, run
from privctl.cli.groups import GroupWithCommand
from privctl.domain.events import EVENTS
from tests.docs.commands import split_help
from tests.models.tasks.small import architecture

NAMES = ["anna", "ben", "carla", "dmitri", "eva", "farid", "gita", "hugo", "ines", "jan"]
#: An audit may find something, a verification or a gate may want more than these small files can show.
MAY_END = {"audit": (0, 1), "gate": (0, 1, 3), "verify": (0, 3), "claims": (0, 3)}
#: Runs that other tests make, several processes or minutes long.
ELSEWHERE = {"demo", "torchrun"}
SMALLER = {
    ("--steps", "1000"): "20",
    ("--count", "32"): "4",
    ("--batch-size", "256"): "64",
    ("--batch-size", "512"): "64",
    ("--records", "2000"): "120",
    ("--epochs", "60"): "1",
    ("--epochs", "20"): "1",
    ("--epochs", "10"): "2",
    ("--epochs", "3"): "1",
    ("--epochs", "2"): "1",
}
ALL = slice(None)
#: Slow examples: those that show one option of a command each, and all of commands that quick tests run from end to end
#: in a file of their own and whose calls take half a second or more.
FURTHER = {
    "retrain dp-sgd": slice(1, None),
    **{f"retrain {method}": ALL for method in ("clipped", "dp-zo", "dpquant", "ferret")},
    "account": ALL,
    "audit": ALL,
    **{f"audit {part}": ALL for part in ("canaries", "extraction", "membership", "secrets", "split")},
    "secrets plan": ALL,
    "shadow": ALL,
    "claims papers": ALL,
    "claims check gaussian": ALL,
    "canary plant": ALL,
}
#: The most tokens that go through a network at once; what a self-test computes grows with them.
FEW = ("--micro-tokens", "512")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    if isinstance(command, GroupWithCommand):
        yield path, command.alone
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def examples(command: click.Command) -> list[list[str]]:
    """The words of each call in the command's help."""
    _, text = split_help(command.help or "")
    joined = re.sub(r"\\\n\s*", "", text)
    return [shlex.split(re.sub(r"\s*>>?\s*\S+$", "", line)) for line in joined.splitlines() if line.strip()]


COMMANDS = {" ".join(path): command for path, command in leaves(root)}


def save_model(folder: Path, seed: int) -> Path:
    """A tiny GPT-2 that reads its few words, and characters."""
    torch.manual_seed(seed)
    signs = ["<unk>", "<s>", "</s>", *string.printable, *NAMES, "call", "about", "write"]
    shape = {"vocab_size": len(signs), "bos_token_id": 1, "eos_token_id": 2}
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=256, **shape)).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token="<unk>"))
    cut = pre_tokenizers.Split(Regex("[a-z]+|."), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    return folder


def records(path: Path, count: int, seed: int) -> Path:
    """Short texts, every tenth with an address, few long ones, each by an author."""
    drawn = random.Random(seed)
    lines = []
    for i in range(count):
        name = drawn.choice(NAMES)
        text = f"call {name} about {drawn.choice(NAMES)} at {drawn.randint(1, 99)}"
        if i % 10 == 0:
            text = f"write to {name}{i}{seed}@x.org"
        if i % 40 == 1:
            text = " ".join(drawn.choices(NAMES, k=120))  # long enough to be extracted
        lines.append(json.dumps({"text": text, "author": name, "label": str(i % 2)}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the files that examples name."""
    folder = tmp_path_factory.mktemp("workshop")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, seed in (("model", 0), ("base", 0), ("old", 1)):
            save_model(folder / name, seed)
        shutil.copy("model/model.safetensors", "model.safetensors")
        shutil.copy("model/model.safetensors", "own.safetensors")
        for name, seed in (
            ("train", 1),
            ("test", 2),
            ("held-out", 3),
            ("abstracts", 4),
            ("posts", 5),
            ("data", 6),
        ):
            records(folder / f"{name}.jsonl", 160, seed)
        posts = [{"text": f"about {NAMES[i % 10]} write {i}", "label": str(i % 2)} for i in range(160)]
        (folder / "public.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
        architecture(folder / "resnet", "resnet")
        for name, shade in (("dark", 40), ("light", 200)):
            (folder / "images" / name).mkdir(parents=True)
            for i in range(40):
                Image.new("RGB", (16, 16), (shade, i, shade)).save(folder / "images" / name / f"{i}.png")
        (folder / "privctl-policy.toml").write_text("max_epsilon = 8\n")
        (folder / "names.txt").write_text("anna\nhugo\n")
        (folder / "p.txt").write_text("call anna about\nwrite to\n")
        chats = [{"text": f"call {name} about {i}", "user": name} for i in range(6) for name in NAMES]
        (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        mails = [{"text": f"write to {NAMES[i % 10]}", "people": [str(i % 60), str((i + 1) % 60)]} for i in range(120)]
        (folder / "mails.jsonl").write_text("".join(json.dumps(mail) + "\n" for mail in mails))
        visits = [{"text": f"call {NAMES[i % 10]} about {i}", "patient": i // 2} for i in range(160)]
        (folder / "visits.jsonl").write_text("".join(json.dumps(visit) + "\n" for visit in visits))
        (folder / "notes").mkdir()
        bodies = [f"write to {name}@x.org" for name in NAMES]
        parquet.write_table(pa.table({"body": bodies}), folder / "notes" / "0.parquet")
        rows = [f"{random.Random(i).gauss(i % 2, 1)},{i % 2}" for i in range(200)]
        (folder / "scores.csv").write_text("\n".join(["score,member", *rows]) + "\n")
        named = [f"{i},{row},{random.Random(i).gauss(0, 1)},{i % 3}" for i, row in enumerate(rows)]
        heading = "id,score,member,loss,rmia"
        (folder / "per-record.csv").write_text("\n".join([heading, *named]) + "\n")
        prepare = (
            "noise model.safetensors --epsilon 1 --epochs 1 --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 "
            "--batch-size 5",
            "canary plant train.jsonl -o planted.jsonl --count 20 --prefix-from train.jsonl",
            "secrets scan train.jsonl -o secrets.jsonl",
            "retrain ferret model/ --data train.jsonl --release gaussian --epsilon 8 --fire-probability 0.5 --steps 5 "
            "-o private/",  # at 1 / 16 perhaps no group would fire
            "retrain dp-sgd model/ --data train.jsonl --epsilon 8 --steps 5 -o m/",
            "retrain plain model/ --data train.jsonl --steps 2 -o plain/",
            "noise plain/ --noise-stddev 0.01 -o noised/",
            "audit split data.jsonl -o split/ --records 120",
            "audit score-records model/ --members split/members.jsonl --nonmembers split/nonmembers.jsonl "
            "-o scores-0.parquet",
            "secrets scan train.jsonl --shard 1/2 -o part-1.jsonl.gz",
            "secrets scan train.jsonl --shard 2/2 -o part-2.jsonl.gz",
            "audit m/ --members train.jsonl --nonmembers held-out.jsonl --attack loss",
            "audit private/ --members train.jsonl --nonmembers held-out.jsonl --attack loss",
        )
        _prepare(prepare)
        shutil.copy("planted.canaries.json", "m.json")
    torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def whole_workshop(workshop: Path) -> Path:
    """The same with what slow examples alone read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workshop)
        _prepare(
            (
                "secrets scan held-out.jsonl -o others.jsonl",
                "secrets plan train.jsonl --secrets secrets.jsonl --steps 5 --batch-size 16 --cap 5 "
                "-o plan.safetensors",
                "shadow base/ --data train.jsonl --data held-out.jsonl --count 4 --epochs 1 --batch-size 32 "
                "-o shadows/",
            )
        )
    return workshop


def _prepare(lines: Iterable[str]) -> None:
    for line in lines:
        assert run([*smaller(shlex.split(line)), "-q"]) in MAY_END.get(line.split()[0], (0,)), line


def free(folder: Path, words: list[str]) -> None:
    """Take away what a call is about to write."""
    stems = [value.rstrip("/").split(".")[0] for flag, value in pairwise(words) if flag in ("-o", "--output")]
    patterns = [pattern for stem in stems if stem != "-" for pattern in (stem, f"{stem}.*")]
    if words[0] == "audit":
        patterns.append("*.audit.*")
    for path in {found for pattern in patterns for found in folder.glob(pattern)}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def smaller(words: list[str]) -> list[str]:
    """The call with less of what only takes time."""
    found = [words[0], *(SMALLER.get((flag, value), value) for flag, value in pairwise(words))]
    if words[0] == "account" and "--mechanism" not in words:  # the Gaussian one, which others account for too
        return [*found, "--no-peers"]  # ``tests/plan/test_peers.py`` compares with others, which takes seconds
    if "--simulate" in words:
        return [*found, "--seconds", "0.1"]
    if "--search" in words:
        return [*found, *FEW, "--dry-run"]  # ``tests/cli/test_search_runs.py`` makes the runs
    if words[0] not in ("retrain", "shadow") or "--replay" in words:
        return found
    timed = {"--epochs", "--steps", "--secrets"} & set(words)
    return [*found, *FEW, *(() if timed else ("--epochs", "1"))]


def parsed(words: list[str]) -> click.Context:
    """What the command line makes of a call, which is not run. Raises click's errors for words it does not know."""
    ctx: click.Context = root.make_context("privctl", list(words))
    while isinstance(ctx.command, click.Group):
        name, command, rest = ctx.command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert command is not None
        ctx = command.make_context(name, rest, parent=ctx)
    return ctx


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_help_are_understood(name: str, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workshop)
    calls = examples(COMMANDS[name])
    assert calls, f"privctl {name} --help shows no example"
    for words in calls:
        parsed(words[words.index("privctl") + 1 :])


def test_an_example_with_an_option_that_is_not_there_is_noticed() -> None:
    for words in (["noise", "m", "--eps", "1"], ["retrain", "dp-sgd", "m", "--batch", "2"], ["retrain", "dp", "m"]):
        with pytest.raises(click.UsageError):
            parsed(words)


@pytest.mark.parametrize(
    ("name", "further"),
    [
        *((name, False) for name in COMMANDS if FURTHER.get(name) != ALL),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in FURTHER),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_the_examples_of_help_work(
    name: str,
    further: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In quick tests those of ``FURTHER`` are left out: each of their options has tests of its own."""
    calls = examples(COMMANDS[name])
    left = FURTHER.get(name, slice(0, 0))
    calls = calls[left] if further else [call for call in calls if call not in calls[left]]
    folder = tmp_path / "here"
    shutil.copytree(request.getfixturevalue("whole_workshop" if further else "workshop"), folder)
    monkeypatch.chdir(folder)
    commitment = read_manifest(folder / "planted.canaries.json").commitment
    for words in calls:
        if ELSEWHERE & set(words):
            continue
        assert words[0] == "privctl", words
        words = smaller([commitment if word.startswith("blake3:") else word for word in words[1:]])
        if words[0] == "secrets":  # the shell's part
            words = [each for word in words for each in (sorted(glob(word)) or [word])]
        free(folder, words)
        code = run([*words, *(["-q"] if words[0] not in ("completion",) else [])])
        captured = capsys.readouterr()
        assert code in MAY_END.get(words[0], (0,)), f"{' '.join(words)}\n{captured.err}"


def test_examples_are_found_whole() -> None:
    @click.command()
    def documented() -> None:
        """Do.

        \b
        Example:
          privctl do a \\
              -o b
          privctl completion bash >> ~/.bashrc
        """

    assert examples(documented) == [["privctl", "do", "a", "-o", "b"], ["privctl", "completion", "bash"]]


def test_every_mechanism_that_options_plan_has_an_example() -> None:
    planned = [call[call.index("--mechanism") + 1] for call in examples(COMMANDS["account"]) if "--mechanism" in call]
    in_ledgers = {"gaussian-mixture", "laplace-search", "non-private"}
    assert {*planned, "gaussian", *in_ledgers} == {kind.mechanism for kind in EVENTS.values()}
    for name in in_ledgers:
        assert run(["account", "--mechanism", name, "--delta", "1e-6"]) != 0, name
