"""Do attacks on the weights alone bring images nearer to training images than to held-out ones of the same source?

Small networks learn 10 small photographs, of the classes automobile and frog, by heart; 10 others were held out by
chance. Each attack then makes 20 images of each network (``inversion_attacks``), and the exact test of Mann and Whitney
compares how near the nearest of them comes to the records of either side.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.common import ROOT, publish, save

HEADINGS = (
    "network", "training", "left by training images", "left by held-out ones", "attack",
    "correlation, training images", "correlation, held-out ones", "p-values",
)  # fmt: skip
SIZE, RECORDS, CLASSES = 8, 10, ("automobile", "frog")
ATTACKS = {"conditions": "conditions", "class": "class inversion"}
#: Steps of the attack on perceptrons, and on others, where each takes several times as long.
_STEPS = {"perceptron": 2500, "other": 1000}
#: Kinds with so many rounds more, as three left it open whether anything is found.
_MORE = {"resnet plain": 2}
_RESNET: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [64], "depths": [1], "layer_type": "basic"}
_VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": SIZE,
    "patch_size": 4,
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument(
        "--rounds", type=int, default=3, help="networks of each kind, and two more ResNets of retrain plain"
    )
    parser.add_argument("--processes", type=int, default=2, help="networks at a time")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the shared data")


def main(options: argparse.Namespace) -> None:
    """Measure and publish, after each network what is known by then."""
    os.environ["OMP_NUM_THREADS"] = "1"
    archive = str(options.data / "vision" / "cifar10-jpg.tar.gz")
    pictures = _pictures(archive)
    most = options.rounds + max(_MORE.values())
    jobs = [
        (number, kind, pictures)
        for number in range(most) for kind in KINDS if number < options.rounds + _MORE.get(kind, 0)
    ]  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    settings = {"size": SIZE, "records": RECORDS, "images": 2 * RECORDS, "steps": _STEPS, "classes": CLASSES}
    data = {"settings": settings, "found": found}
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for kind, each in pool.imap_unordered(_job, jobs):
            found[kind].append(each)
            print(kind, each, file=sys.stderr, flush=True)
            save("inversion", data, options.output)
    publish("inversion", HEADINGS, rows(data), data, options.output)


def rows(data: dict[str, Any]) -> list[list[str]]:
    """Means over the rounds; all p-values, in order."""
    return [
        [
            *KINDS[kind][:2], f"{fmean(run['left'][0] for run in runs):.3f}",
            f"{fmean(run['left'][1] for run in runs):.3f}", attack_name,
            f"{fmean(run[attack]['near'][0] for run in runs):.2f}",
            f"{fmean(run[attack]['near'][1] for run in runs):.2f}",
            ", ".join(f"{p:.3f}" if p >= 0.0005 else f"{p:.5f}" for p in sorted(run[attack]["p"] for run in runs)),
        ]
        for kind, runs in data["found"].items() if runs for attack, attack_name in ATTACKS.items()
    ]  # fmt: skip


def _job(job: tuple[int, str, Any]) -> tuple[str, dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    number, kind, pictures = job
    with contextlib.redirect_stderr(io.StringIO()):
        return kind, measured(number, kind, pictures)


def measured(number: int, kind: str, pictures: Any) -> dict[str, Any]:
    """One network of ``kind`` and what both attacks make of it; ``number`` draws the split and all else."""
    import torch

    from tests.bench.inversion_attacks import Target, by_class, by_conditions, nearest, residual, side_p_value

    pixels, labels = pictures
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(number))
    train, heldout, others = order[: 3 * RECORDS].split(RECORDS)
    learned = others if kind == "null" else train
    images = pixels.float() / 127.5 - 1
    if "plain" not in kind:  # as Haim et al. do, but by images that nobody asks about; privctl centres by constants
        images = images - images[order[3 * RECORDS :]].mean(0)
    torch.manual_seed(number)
    network, parameters = KINDS[kind][2](pixels[learned], images[learned], labels[learned])
    target = Target(network.eval(), tuple(images.shape[1:]), parameters=parameters)
    with torch.no_grad():
        answer = network(images[learned])
    logits = getattr(answer, "logits", answer)
    left = [residual(target, images[side], labels[side]) for side in (train, heldout)]
    loss = float(torch.nn.functional.cross_entropy(logits, labels[learned]))
    found: dict[str, Any] = {"round": number, "loss": loss, "left": left}
    results = {"class": by_class(target, 2 * RECORDS, number)}
    results["conditions"], reached = by_conditions(
        target, 2 * RECORDS, number, steps=_STEPS["perceptron" if KINDS[kind][0] == "perceptron" else "other"]
    )
    for name, reconstructions in results.items():
        near = [nearest(reconstructions, images[side]) for side in (train, heldout)]
        found[name] = {"p": side_p_value(*near), "near": [float(each.mean()) for each in near]}
    found["conditions"]["left"] = reached
    return found


def perceptron(images: Any, labels: Any, *, first: float = 1.0, decay: float = 0.0, steps: int = 600) -> Any:
    """A perceptron of 300 ReLUs, its first layer drawn ``first`` times as large as usual, by gradient descent."""
    from torch import nn

    hidden = nn.Linear(images[0].numel(), 300)
    network = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(300, len(CLASSES), bias=False))
    return _descend(network, hidden.parameters(), images, labels, first=first, decay=decay, steps=steps)


def _descend(network: Any, small: Any, images: Any, labels: Any, *, first: float, decay: float, steps: int) -> Any:
    """All records in each step. Without decay steps grow as the loss falls, until it is 1e-5."""
    import torch

    with torch.no_grad():
        for parameter in small:
            parameter.mul_(first)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        answer = network(images)
        loss = torch.nn.functional.cross_entropy(getattr(answer, "logits", answer), labels)
        loss.backward()
        if not decay:
            now = float(loss.detach())
            optimizer.param_groups[0]["lr"] = 0.05 * min(max(1.0, 0.1 / now), 1e4)
        optimizer.step()
        if not decay and now < 1e-5:
            break
    return network


def _residual_network(images: Any, labels: Any, **settings: Any) -> Any:
    """A small ResNet whose batch normalisation stays as drawn, so that it is a network of convolutions and ReLUs."""
    from transformers import ResNetConfig, ResNetForImageClassification

    network = ResNetForImageClassification(ResNetConfig(**_RESNET)).eval()
    return _descend(network, network.resnet.embedder.embedder.convolution.parameters(), images, labels, **settings)


def _retrained(kind: str, pixels: Any, labels: Any, **settings: Any) -> Any:
    """What ``privctl retrain plain`` makes from scratch of an architecture, by AdamW in 300 steps of all records."""
    import numpy as np
    import transformers

    import privctl

    architecture = {"vit": ("ViT", _VIT), "resnet": ("ResNet", _RESNET)}[kind]
    config = getattr(transformers, f"{architecture[0]}Config")(num_labels=len(CLASSES), **architecture[1])
    config.architectures = [f"{architecture[0]}ForImageClassification"]
    config.id2label = {number: str(number) for number in range(len(CLASSES))}
    config.label2id = {name: number for number, name in config.id2label.items()}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        config.save_pretrained(place / "start")
        np.savez(place / "train.npz", images=pixels.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
        privctl.retrain(
            "plain", place / "start", data=place / "train.npz", output=place / "model", from_scratch=True,
            task="image-classification", batch_size=RECORDS, steps=300, learning_rate=0.002, device="cpu", **settings,
        )  # fmt: skip
        return transformers.AutoModelForImageClassification.from_pretrained(
            place / "model", attn_implementation="eager"
        )


def _pictures(archive: str) -> Any:
    """60 distinct images a class of the archive's test set: uint8 (n, 3, SIZE, SIZE), and their classes."""
    import numpy as np
    import torch
    from PIL import Image

    found: dict[str, dict[bytes, Any]] = {name: {} for name in CLASSES}
    with tarfile.open(archive) as files:
        for member in files:
            folder = Path(member.name).parent
            if member.isfile() and folder.parent.name == "test" and folder.name in found:
                stream = files.extractfile(member)
                assert stream is not None
                small = Image.open(stream).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX)
                if len(found[folder.name]) < 60:
                    found[folder.name][small.tobytes()] = np.asarray(small)
    pixels = np.stack([image for each in found.values() for image in each.values()])
    labels = [number for number, each in enumerate(found.values()) for _ in each]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


_Make = Callable[[Any, Any, Any], tuple[Any, str]]
_FIRST = "embedder.embedder.convolution"
#: Network, training, and what trains one: (pixels, images, labels) to a network and whose conditions are used.
KINDS: dict[str, tuple[str, str, _Make]] = {
    "small": (
        "perceptron", "first layer drawn 1,000 times smaller",
        lambda _, images, labels: (perceptron(images, labels, first=1e-3), ""),
    ),
    "decay": (
        "perceptron", "weight decay 0.01, 5,000 steps",
        lambda _, images, labels: (perceptron(images, labels, decay=0.01, steps=5000), ""),
    ),
    "usual": ("perceptron", "usual weights", lambda _, images, labels: (perceptron(images, labels), "")),
    "null": (
        "perceptron", "as in the first row, on other images",
        lambda _, images, labels: (perceptron(images, labels, first=1e-3), ""),
    ),
    "resnet small": (
        "ResNet", "first layer drawn 1,000 times smaller, which alone is used",
        lambda _, images, labels: (_residual_network(images, labels, first=1e-3, decay=0.0, steps=600), _FIRST),
    ),
    "resnet decay": (
        "ResNet", "weight decay 0.02, 2,000 steps",
        lambda _, images, labels: (_residual_network(images, labels, first=1.0, decay=0.02, steps=2000), ""),
    ),
    "resnet plain": (
        "ResNet", "`retrain plain`, AdamW",
        lambda pixels, _, labels: (_retrained("resnet", pixels, labels, norm="frozen"), ""),
    ),
    "vit plain": (
        "ViT", "`retrain plain`, AdamW", lambda pixels, _, labels: (_retrained("vit", pixels, labels), ""),
    ),
}  # fmt: skip
