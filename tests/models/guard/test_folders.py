"""Folders that would make a loader run code, read weights from elsewhere, or take memory without end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.guard import sizes, tokenizers
from privctl.models.guard.keys import REFUSED
from privctl.models.guard.loading import check_alone
from privctl.models.guard.weights import check_loaded
from privctl.models.kinds import CAUSAL
from privctl.models.language import LanguageModel, load_model, read_config, read_network, read_tokenizer
from privctl.models.loading import load_for_training
from privctl.storage.reader import open_checkpoint
from tests.audits.tiny import CONFIGS, save_model, save_tokenizer
from tests.few import few
from tests.forked import Forked

#: Address space that a process which must refuse a bomb has beyond PyTorch and transformers, and its processor seconds.
_ROOM, _SECONDS = 4 << 30, 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model")


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**data, **changes}))


def other_weights(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({k: v + 1 for k, v in weights.items()}, folder / name, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("transformers_weights", "other.safetensors", "take weights from a place that no digest covers"),
        ("attn_implementation", "kernels-community/flash-attn", "import or download code"),
        ("attn_implementation", {"": "eager", "text": "somebody/kernel@main:forward"}, "import or download code"),
        ("_attn_implementation", "flash_attention_2", "import or download code"),
        ("experts_implementation", "kernels-community/moe", "import or download code"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantized weights"),
        ("quantization_config", {"quant_method": "hqq"}, "quantized weights"),
        ("fusion_config", {"layers": "somebody/kernel"}, "import or download code"),
        ("kernel_config", {"RMSNorm": "kernels-community/norm"}, "import or download code"),
        ("use_kernels", True, "import or download code"),
        ("configuration_files", ["config.9.0.0.json"], "read another file"),
        ("use_pretrained_backbone", True, "take weights from a place"),
        ("use_timm_backbone", True, "import or download code"),
        ("torch_compile", True, "compile code"),
    ],
)
def test_keys_that_reach_beyond_the_weights_are_refused(folder: Path, key: str, value: Any, why: str) -> None:
    other_weights(folder, "other.safetensors")
    (folder / "other.safetensors").rename(folder.parent / "other.safetensors")
    edit(folder / "config.json", **{key: value})
    for load in (load_model, lambda path: load_for_training(path, TaskName.CAUSAL_LM)):
        with pytest.raises(InputError, match=rf"config\.json has {key} .*{why}"):
            load(folder)
    edit(folder / "config.json", **{key: None}, text_config={key: value})
    with pytest.raises(InputError, match=rf"config\.json has {key} .*{why}"):
        load_model(folder)


def test_the_book_of_keys_is_whole() -> None:
    """What transformers itself writes is not refused."""
    for make in CONFIGS.values():
        assert not set(make().to_dict()) & set(REFUSED) - {"_attn_implementation"}


def test_generation_may_not_name_code(folder: Path) -> None:
    edit(folder / "generation_config.json", custom_generate="somebody/decoding")
    with pytest.raises(InputError, match=r"generation_config\.json has custom_generate"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd"}, "read another file"),
        ("tokenizer_config.json", {"vocab_file": "../other/vocab.json"}, "read another file"),
        ("tokenizer_config.json", {"trust_remote_code": True}, "import or download"),
    ],
)
def test_tokenizers_that_reach_beyond_their_folder(folder: Path, name: str, changes: Any, why: str) -> None:
    edit(folder / name, **changes)
    with pytest.raises(InputError, match=why):
        read_tokenizer(folder, folder)


def test_names_of_code_are_taken_out(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoConfig": "mine.Config"})
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Tokenizer", None]})
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    assert not hasattr(read_config(folder, folder), "auto_map")
    assert not hasattr(load_model(folder, device="cpu").network.config, "auto_map")


@pytest.mark.parametrize("eps", [1e12, -1.0, 3])
def test_a_normalisation_that_drowns_the_weights_is_refused(folder: Path, eps: float) -> None:
    edit(folder / "config.json", rms_norm_eps=eps)
    with pytest.raises(InputError, match="leaves little of what the weights compute"):
        load_model(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("adapter_model.safetensors", "adapter_config.json", "pytorch_model.bin", "other.safetensors"),
        *("onnx/model.onnx", "sub/model.safetensors", "LICENSE.safetensors", ".hidden/other.safetensors"),
    ],
)
def test_weights_that_nobody_lists_are_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{}")
    with pytest.raises(InputError, match=f"also holds weights that are not part of the model: {name}"):
        load_model(folder)
    load_model(folder / "model.safetensors", device="cpu")


def test_what_the_trainer_keeps_beside_the_weights_is_left_alone(folder: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_1.pth"):
        (folder / name).write_bytes(b"\x80\x02never opened")
    load_model(folder, device="cpu")
    (folder / "checkpoint-10").mkdir()
    (folder / "checkpoint-10" / "optimizer.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"not part of the model: checkpoint-10/optimizer\.pt;"):
        load_model(folder, device="cpu")


def test_shards_and_what_people_read_are_part_of_it(folder: Path) -> None:
    network = load_model(folder, device="cpu").network
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder, max_shard_size="20KB")
    (folder / "README.md").write_text("A model.")
    with open_checkpoint(folder) as checkpoint:
        check_alone(checkpoint)
    load_model(folder, device="cpu")


def test_an_adapter_beside_is_not_seen_by_the_loader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training begins with the checkpoint, whatever lies beside it."""
    other_weights(folder, "adapter_model.safetensors")
    edit(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder))
    keys: list[set[str]] = []
    real = CAUSAL.auto.from_pretrained
    monkeypatch.setattr(
        CAUSAL.auto, "from_pretrained", lambda f, **k: keys.append({p.name for p in Path(f).iterdir()}) or real(f, **k)
    )
    model = load_for_training(folder, TaskName.CAUSAL_LM)
    assert keys == [{"model.safetensors", "config.json", "generation_config.json"}]
    held = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(model.network.get_parameter("model.norm.weight").detach(), held)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], 1))
def test_every_architecture_comes_back_as_it_was_digested(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    folder = save_model(tmp_path / "model", kind)
    network = load_model(folder, device="cpu").network.to(dtype)
    network.save_pretrained(folder)
    loaded: LanguageModel = load_model(folder, device="cpu")
    with open_checkpoint(folder) as checkpoint:
        check_loaded(loaded.network, checkpoint, (), ())
        parameter = next(p for p in loaded.network.parameters() if p.ndim > 1)
        with torch.no_grad():
            parameter.view(-1)[7] += 1e-3
        with pytest.raises(InputError, match="is not the one in model.safetensors"):
            check_loaded(loaded.network, checkpoint, (), ())


def test_a_loader_that_takes_other_weights_is_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = save_model(folder.parent / "other", seed=5)
    real = CAUSAL.auto.from_pretrained
    monkeypatch.setattr(CAUSAL.auto, "from_pretrained", lambda _, **k: real(other, **k))
    with pytest.raises(InputError, match="results would be about other weights"):
        load_model(folder, device="cpu")


def test_experts_that_are_kept_in_one_tensor_come_back(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=63, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3, max_position_embeddings=32,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        network, misfits = read_network(checkpoint, tmp_path, config, torch.float32, CAUSAL)
        assert not misfits.missing
        held = {info.name for _, info in checkpoint.tensors()}
        moved = [n for n, p in network.named_parameters() if n not in held]
        assert moved, "this architecture keeps its experts rearranged"
        with torch.no_grad():
            network.get_parameter(moved[0]).view(-1)[0] += 1e-2
        with pytest.raises(InputError, match="holds other numbers than the file"):
            check_loaded(network, checkpoint, (), ())


def refusals(load: str, folders: list[Path], forked: Forked) -> list[str]:
    """What each folder is refused with, all of them loaded in one process of little memory, and in a minute."""
    program = f"""
import resource, sys
from pathlib import Path
from privctl.domain.errors import InputError
from privctl.models.language import load_model, read_tokenizer
from privctl.models.choices import TaskName
from privctl.models.loading import load_for_training
from tests.memory import peak
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {_ROOM}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
before = peak()
for folder in map(Path, sys.argv[1:]):
    try:
        {load}
        print("loaded")
    except InputError as fault:
        print(fault)
print((peak() - before) >> 20)
"""
    script, printed = (folders[0].parent / name for name in ("refuse.py", "said"))
    script.write_text(program)
    with printed.open("w") as out:
        process = forked.start([*map(str, folders)], errors=True, stdout=out.fileno(), script=str(script))
        _, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    *lines, grown = printed.read_text().splitlines()
    assert int(grown) < 300, "MiB"
    return lines


def test_a_configuration_larger_than_its_weights_is_not_built(tmp_path: Path, forked: Forked) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_hidden_layers": 200_000}, "num_hidden_layers 200000; at most 2048 layers are built"),
        ({"num_hidden_layers": 2_000}, "num_hidden_layers 2000, but the weights are 21 tensors"),
        ({"hidden_size": 1 << 20}, "numbers, but the weights hold"),
        ({"vocab_size": 1 << 34}, "numbers, but the weights hold"),
        ({"intermediate_size": 1 << 38}, "numbers, but the weights hold"),
        ({"num_labels": 1 << 32}, "num_labels 4294967296, and 1048576 is the most"),
    ]
    folders = [save_model(tmp_path / str(i)) for i in range(len(cases))]
    for folder, (changes, _) in zip(folders, cases, strict=True):
        edit(folder / "config.json", **changes)
    found = refusals("load_model(folder, device='cpu')", folders, forked)
    for line, (_, sentence) in zip(found, cases, strict=True):
        assert sentence in line


def test_what_was_counted_for_one_network_says_nothing_of_another() -> None:
    small, large = CONFIGS["gpt2"](), CONFIGS["gpt2"]()
    large.n_embd = 64
    classes = (AutoModelForCausalLM, AutoModelForSequenceClassification)
    found = {sizes.numbers_of(auto, config) for auto in classes for config in (small, large)}
    assert len(found) == 4
    built = AutoModelForCausalLM.from_config(large)
    counted = sum(tensor.numel() for tensor in (*built.parameters(), *built.buffers()))
    assert sizes.numbers_of(AutoModelForCausalLM, large) == counted


@pytest.mark.parametrize(
    "changes", [{"n_head": 0}, {"n_head": 5}, {"activation_function": "evil"}, {"n_positions": -1}]
)
def test_a_configuration_that_contradicts_itself_is_one_sentence(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = save_model(tmp_path / "model", "gpt2")
    edit(folder / "config.json", **changes)
    with pytest.raises(InputError, match="cannot be loaded: |is refused by transformers: "):
        load_model(folder, device="cpu")
    with pytest.raises(InputError, match="no network can be made of|is refused by transformers: "):
        load_for_training(folder, TaskName.CAUSAL_LM, from_scratch=True)


def test_random_weights_have_bounds_too(tmp_path: Path, forked: Forked) -> None:
    cases = [
        ({"num_hidden_layers": 200_000}, "at most 2048 layers are built"),
        ({"vocab_size": 1 << 38}, "this machine has room for"),
    ]
    folders = [save_model(tmp_path / str(i)) for i in range(len(cases))]
    for folder, (changes, _) in zip(folders, cases, strict=True):
        edit(folder / "config.json", **changes)
        (folder / "model.safetensors").unlink()
    found = refusals("load_for_training(folder, TaskName.CAUSAL_LM)", folders, forked)
    for line, (_, sentence) in zip(found, cases, strict=True):
        assert sentence in line


def grow(data: dict[str, Any]) -> None:
    step = {"type": "Replace", "pattern": {"String": "w"}, "content": "ww"}
    data["normalizer"] = {"type": "Sequence", "normalizers": [step] * 40}


def pad(data: dict[str, Any]) -> None:
    data["padding"] = {
        "strategy": {"Fixed": 1 << 30}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<unk>",
    }  # fmt: skip


def added(count: int, length: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        data["added_tokens"] += [
            {"id": 100 + i, "content": f"{i:08d}".ljust(length, "x"), **flags} for i in range(count)
        ]

    return change


def frame(data: dict[str, Any]) -> None:
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 100_000,
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }


def pattern(data: dict[str, Any]) -> None:
    data["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(a|b)" * 10_000}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def test_tokenizers_that_take_memory_without_end_are_refused(tmp_path: Path, forked: Forked) -> None:
    cases = [
        (grow, "may grow by a factor of 1.1e+12, and 64 is the most"),
        (pad, "fills every text up to 1073741824 tokens"),
        (added(200_000, 8), "tokens, and 50000 is the most"),
        (added(3_000, 900), "characters"),
        (frame, "puts 100000 tokens around every text"),
        (pattern, "has a pattern of 50000 characters"),
    ]
    folders = [tmp_path / str(i) for i in range(len(cases))]
    for folder, (change, _) in zip(folders, cases, strict=True):
        save_tokenizer(folder)
        data = json.loads((folder / "tokenizer.json").read_text())
        change(data)
        (folder / "tokenizer.json").write_text(json.dumps(data))
    found = refusals("read_tokenizer(folder, folder)('w' * 64)", folders, forked)
    for line, (_, sentence) in zip(found, cases, strict=True):
        assert sentence in line


def test_files_of_a_vocabulary_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "LARGEST_TOKENIZER", 1000)
    (folder / "merges.txt").write_bytes(b"a b\n" * 300)
    with pytest.raises(InputError, match=r"merges\.txt has 1200 bytes, and 1000 is the most"):
        read_tokenizer(folder, folder)


def test_published_tokenizers_are_within_the_bounds() -> None:
    """Gemma 3: 33 MB, 262,145 tokens, 6,415 added ones; XLM-R and BLOOM have 250,000 tokens."""
    assert tokenizers.LARGEST_TOKENIZER > 3 * 33_384_568
    assert tokenizers.MOST_TOKENS > 4 * 262_145
    assert tokenizers.MOST_ADDED > 4 * 6_415
    assert sizes.MOST_LAYERS >= 2 * 1000


def test_an_old_gpt2_with_its_tables_is_read(tmp_path: Path) -> None:
    """Older files hold tables that are computed today; they have no place and no effect."""
    folder = save_model(tmp_path / "model", "gpt2")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_model(folder, device="cpu")
