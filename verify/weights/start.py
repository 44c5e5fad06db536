"""The initial weights of a training: drawn again from its seed, or read from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.storage.reader import ADAPTER_NAME, INDEX_NAME, SINGLE_NAME, Checkpoint, SafetensorsFile, open_checkpoint
from verify.checkpoint_noise.values import VIEWS, numbers
from verify.files.places import located
from verify.weights.settings import UncheckableError, UnstatedError, facts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.models.kinds import ModelClass

_PREFIX = "start-"
#: How the names of matrices end that peft makes of zeros in a new adapter.
_BEGUN_WITH_ZERO = ".lora_B.weight"
#: Gives a file's digest, reading each file once.
Digest = Callable[[Path], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Initial ``tensors`` by name, floating-point ones as float32; ``parameters`` names the trainable ones.

    ``exact`` is whether all were read and none drawn, since another processor may round draws differently. ``unknown``
    names the tensors whose initial values are not known.
    """

    tensors: Mapping[str, NDArray[Any]]
    parameters: frozenset[str]
    exact: bool
    source: str
    unknown: frozenset[str] = frozenset()


def start_of(path: Path, report: PrivacyReport, output: Path, digest: Digest) -> Start:
    """The initial weights of the training with the report at ``path`` and the model file ``output``.

    The architecture is that of the released config.json. Raises UncheckableError with the reason if they are
    unavailable, or UnstatedError if the report itself is to blame.
    """
    parameters = facts_of(report)
    if parameters.adapter:
        return _adapter_start(path, report, output, digest)
    seed, how = parameters.initial_seed, parameters.initial_weights
    if seed is None or not 0 <= seed < 2**63:
        raise UnstatedError("the report does not say from which seed its weights were drawn")
    if how not in ("random", "checkpoint"):
        raise UncheckableError(f"the report says {how!r} of what its weights began as")
    place = None if how == "random" else _checkpoint(path, report, digest)
    # Drawn weights depend only on what the report states.
    fault = UnstatedError if how == "random" else UncheckableError
    with unbuilt("the first weights cannot be made again", fault):
        network = _network(output, parameters.task, seed, place)
        if parameters.converted == "batch-norm":
            _convert_batch_norm(network)
    alone = dict(network.named_parameters())
    tied = dict(network.named_parameters(remove_duplicate=False)).keys() - alone.keys()
    return Start(
        tensors={n: t.detach().numpy() for n, t in network.state_dict().items() if n not in tied},
        parameters=frozenset(alone),
        exact=place is not None and not parameters.fresh_tensors,
        source=f"drawn again from seed {seed}" if place is None else f"read from {place.name}",
    )


@contextmanager
def unbuilt(what: str, fault: type[UncheckableError] = UncheckableError) -> Iterator[None]:
    """Inside, whatever prevents a network from being built becomes a ``fault`` that says ``what`` follows, and why."""
    try:
        yield
    except ImportError as error:
        raise UncheckableError(f"{what}: {error}") from None
    except (PrivctlError, ArithmeticError, AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as e:
        why = str(e).partition("\n")[0]
        raise fault(f"{what}: {why}") from None


def built(folder: Path, path: Path, task: str, released: Checkpoint) -> Any:
    """The network that the configuration in ``folder`` describes, without weights, if it is as large as ``released``.

    ``path`` names the model in errors.
    """
    import torch

    from privctl.models.guard.loading import check_size
    from privctl.models.language import read_config
    from privctl.models.quiet import quiet_transformers

    kind = _model_class(task)
    with quiet_transformers():
        config = read_config(folder, path)
        check_size(kind.auto, config, folder, released)
        with torch.device("meta"):
            return kind.auto.from_config(config, trust_remote_code=False)


def _adapter_start(path: Path, report: PrivacyReport, output: Path, digest: Digest) -> Start:
    """The adapter that the training started from, or what is known of a new one."""
    begun = next((a for a in report.inputs if a.role == _PREFIX + ADAPTER_NAME), None)
    if begun is None:
        return _new_adapter(output)
    _checkpoint(path, report, digest)
    with SafetensorsFile(located(path, begun.path)) as file:
        if odd := next((info for info in file.tensors if info.dtype not in VIEWS), None):
            raise UncheckableError(f"the tensor {odd.name!r} is {odd.dtype}, which no training here moves")
        tensors = {
            info.name: numbers(np.frombuffer(file.read(info), VIEWS[info.dtype]), info.dtype)
            .astype(np.float32)
            .reshape(info.shape)
            for info in file.tensors
        }
    return Start(tensors=tensors, parameters=frozenset(tensors), exact=True, source=f"read from {begun.path}")


def _new_adapter(output: Path) -> Start:
    """The first adapter of new ones, as far as nothing is drawn for it: peft begins with zeros as matrices B."""
    with SafetensorsFile(output) as file:
        shapes = {info.name: info.shape for info in file.tensors}
    zero = {n: np.zeros(shape, dtype=np.float32) for n, shape in shapes.items() if n.endswith(_BEGUN_WITH_ZERO)}
    if not zero:
        raise UncheckableError("the first weights of a new adapter without matrices B are not known")
    return Start(
        tensors=zero,
        parameters=frozenset(zero),
        exact=True,
        source="0 in the matrices B of a new adapter",
        unknown=frozenset(shapes.keys() - zero.keys()),
    )


def _checkpoint(path: Path, report: PrivacyReport, digest: Digest) -> Path:
    """The checkpoint that the report names as its start. Raises UncheckableError if weights are missing."""
    files = [(a, located(path, a.path)) for a in report.inputs if a.role.startswith(_PREFIX)]
    weights = [(a, place) for a, place in files if a.role.endswith(".safetensors")]
    if not weights:
        raise UncheckableError("the report names no weights that the training began with")
    for artifact, place in weights:
        if not os.path.isfile(place):
            raise UncheckableError(f"the weights that it began with, {artifact.path}, are not at hand")
        try:
            found = digest(place)
        except PrivctlError as fault:
            raise UncheckableError(str(fault)) from None
        if found != artifact.digest:
            raise UncheckableError(f"{artifact.path} is not what the training began with: its digest differs")
    names = {a.role.removeprefix(_PREFIX) for a, _ in files}
    if len(weights) == 1 and INDEX_NAME not in names:
        return weights[0][1].parent if SINGLE_NAME in names else weights[0][1]
    return _folder(weights)


def _folder(weights: Sequence[tuple[Artifact, Path]]) -> Path:
    """The folder that contains all shards. Raises UncheckableError if they are in several folders."""
    folders = {place.parents[artifact.role.removeprefix(_PREFIX).count("/")] for artifact, place in weights}
    if len(folders) != 1:
        raise UncheckableError("the weights that it began with lie in several folders")
    return folders.pop()


def _network(output: Path, task: str, seed: int, given: Path | None) -> Any:
    """The network before its first step, with random draws in the order in which a training makes them."""
    import torch

    from privctl.models.guard.loading import check_size
    from privctl.models.language import read_config, read_network
    from privctl.models.quiet import quiet_transformers

    kind = _model_class(task)
    folder = output.parent
    with quiet_transformers(), torch.random.fork_rng(devices=[]), open_checkpoint(output) as released:
        config = read_config(folder, output)
        check_size(kind.auto, config, folder, released)
        torch.default_generator.manual_seed(seed)
        if given is None:
            return kind.auto.from_config(config, dtype=torch.float32, trust_remote_code=False).float()
        with open_checkpoint(given) as checkpoint:
            network, _ = read_network(checkpoint, folder, config, torch.float32, kind)
            return network.float()


def _convert_batch_norm(network: Any) -> None:
    """Replace running statistics by mean 0 and variance 1, and adjust scales and shifts to compensate."""
    import torch

    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            with torch.no_grad():
                slope = module.weight.double() / torch.sqrt(module.running_var.double() + module.eps)
                module.bias.copy_(module.bias.double() - module.running_mean.double() * slope)
                module.weight.copy_(slope * (1 + module.eps) ** 0.5)
                module.running_mean.fill_(0)
                module.running_var.fill_(1)
                if module.num_batches_tracked is not None:
                    module.num_batches_tracked.fill_(0)


def _model_class(task: str) -> ModelClass:
    """The model class of transformers for a task."""
    from privctl.models.kinds import KINDS

    kinds: dict[str, ModelClass] = {str(name): kind for name, kind in KINDS.items()}
    if task not in kinds:
        raise UncheckableError(f"the task {task!r} is not known")
    return kinds[task]
