"""A trained model as a Hugging Face directory, with the report of how it was trained beside it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privctl.codec import encode
from privctl.domain.errors import InputFault
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports import POINTER, REPORT_SUFFIX, file_artifact, now, versions
from privctl.storage.atomic import PendingFolder, require_absent, write_bytes, writing
from privctl.storage.digest import file_digest, hash_tensors
from privctl.storage.header import TensorInfo, serialize_header
from privctl.storage.reader import SINGLE_NAME, SafetensorsFile
from privctl.training.clipped import ClippedRun

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_WARNINGS = (
    "no noise was added to these weights: nothing bounds what they give away about the records, so do not hand them "
    "out; privctl noise makes a release of them",
    "losses and clipped fractions in this report were measured on the private records and have no guarantee either",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a finished training leaves: ``network`` and ``tokenizer`` are transformers' objects.

    ``data`` is the file the records came from; ``parameters`` are further settings under the names of their flags.
    """

    network: Any
    tokenizer: Any
    run: ClippedRun
    data: Path
    parameters: Mapping[str, Any]


def report_path(output: Path) -> Path:
    """Where the report of the directory ``output`` lies: beside it, under its name."""
    return output.with_name(output.name + REPORT_SUFFIX)


def save_trained(trained: Trained, output: Path, *, force: bool = False) -> PrivacyReport:
    """Write the directory ``output`` and its report; returns the report.

    The report gets its name just before the directory does, so that no model stands without one. A directory is never
    replaced, a stray report only with ``force``. Raises UsageFault where something is in the way, InputFault for
    weights that are not finite or the format cannot hold, IoFault where the system refuses.
    """
    place = report_path(output)
    require_absent(output, force=False)
    require_absent(place, force)
    with PendingFolder(output) as pending:
        for name, content in _companions(trained):
            write_bytes(pending.temporary / name, content)
        _write_weights(pending.temporary / SINGLE_NAME, trained.network, f"../{place.name}")
        report = _report(trained, place, tuple(_outputs(pending.temporary, output.name)))
        write_bytes(place, encode(report).encode())
        pending.commit()
    return report


def _companions(trained: Trained) -> Iterator[tuple[str, bytes]]:
    """Configuration and tokenizer as transformers writes them, by file name."""
    config = copy.deepcopy(trained.network.config)
    config.architectures = [type(trained.network).__name__]
    config.dtype = trained.network.dtype
    with tempfile.TemporaryDirectory(prefix="privctl-") as scratch, writing(Path(scratch)):
        config.save_pretrained(scratch)
        if getattr(trained.network, "generation_config", None) is not None:
            trained.network.generation_config.save_pretrained(scratch)
        trained.tokenizer.save_pretrained(scratch)
        for path in sorted(Path(scratch).iterdir()):
            if path.is_file():
                yield path.name, path.read_bytes()


def _write_weights(path: Path, network: nn.Module, pointer: str) -> None:
    infos, parts, position = [], [], 0
    for name, tensor in sorted(_tensors(network).items()):
        data = _little_endian(name, tensor)
        infos.append(TensorInfo(name, _DTYPES[tensor.dtype], tuple(tensor.shape), position, position + len(data)))
        parts.append(data)
        position += len(data)
    header = serialize_header(infos, {"format": "pt", POINTER: pointer})
    write_bytes(path, b"".join((header, *parts)))


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name; a tied weight once, under the name ``named_parameters`` gives it."""
    parameters = dict(network.named_parameters())
    tied = dict(network.named_parameters(remove_duplicate=False)).keys() - parameters.keys()
    return {name: tensor for name, tensor in network.state_dict().items() if name not in tied}


def _little_endian(name: str, tensor: Tensor) -> bytes:
    if tensor.dtype not in _DTYPES:
        raise InputFault(f"tensor {name!r} is {tensor.dtype}, which is not written here; convert the model to float32")
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise InputFault(f"tensor {name!r} holds NaN or infinity; the training diverged: lower --learning-rate")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _outputs(folder: Path, name: str) -> Iterator[Artifact]:
    """The files in ``folder``, under the ``name`` it will have."""
    for path in sorted(folder.iterdir()):
        if path.name == SINGLE_NAME:
            with SafetensorsFile(path) as file:
                hasher = hash_tensors(file)
                yield Artifact(
                    role="model",
                    path=f"{name}/{path.name}",
                    digest=hasher.file_digest,
                    bytes=file.size,
                    tensors=hasher.tensors,
                )
        else:
            size = path.stat().st_size
            yield Artifact(role="companion", path=f"{name}/{path.name}", digest=file_digest(path), bytes=size)


def _report(trained: Trained, place: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
    facts = trained.run.facts
    settings = {
        "method": "clipped",
        "data": trained.data.name,
        "optimizer": facts.optimizer.value,
        "seed": trained.run.seed,
    }
    numbers = ("epochs", "learning_rate", "clip_norm", "dataset_size", "batch_size", "momentum", "weight_decay")
    return PrivacyReport(
        step="retrain",
        created=now(),
        versions=versions(("torch", "transformers", "tokenizers", "numpy", "blake3")),
        inputs=(file_artifact("data", trained.data, place),),
        outputs=outputs,
        parameters={**settings, **{name: getattr(facts, name) for name in numbers}, **trained.parameters},
        mechanism=facts,
        evidence=tuple(_evidence(trained.run)),
        warnings=_WARNINGS,
    )


def _evidence(run: ClippedRun) -> Iterator[Evidence]:
    """The last epoch's numbers, and every epoch's in the details."""
    for field, quantity in (
        ("loss", "training loss, nats a token"),
        ("clipped_fraction", "fraction of clipped gradients"),
    ):
        values = [getattr(epoch, field) for epoch in run.epochs]
        yield Evidence(
            method="measured while training, each record as it was met",
            quantity=quantity,
            estimate=values[-1],
            bound=Bound.NONE,
            samples={"records": run.facts.dataset_size, "epochs": run.facts.epochs},
            details={f"epoch {i}": value for i, value in enumerate(values, start=1)},
        )
