"""What is a function of its arguments alone is computed once in a process, however many tests ask for it.

Four things: the self-test before a training, for the same network, made-up records, limits and stages; the rehearsal
of a release, for the same network and the same files beside it; the epsilon of one ledger, which the search for the
least noise asks for many times; and what ``privctl verify`` and ``gate`` compute of one ledger, or build from one
configuration. Only calls from inside ``privctl.cli.run``, and the verification of every report, are answered so; tests
of the functions themselves compute. A test that has replaced an attribute or an entry computes too:
``tests/reports_verified.py`` notices ``MonkeyPatch``.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch import nn

#: Enough to notice noise that is not there; ``tests/verify/weights/test_check.py`` takes as many as users get.
FEW_DRAWS = 20_000
#: Enough for quantile regression to differ from an attack by loss; tests of the attack grow as many as users do.
FEW_TREES = 6
_TESTED_BY = "privctl.train.steps.contribution"
_PASSED: dict[bytes, Any] = {}
_REHEARSED_BY = "privctl.train.runs.setup"
_REHEARSED: set[bytes] = set()


@contextmanager
def self_tests() -> Iterator[None]:
    """Inside, a self-test that was passed before is not made again."""
    tests_of_jobs = sys.modules.get(_TESTED_BY)
    if tests_of_jobs is None:  # nothing was tested yet in this process
        yield
        return
    with mock.patch.object(tests_of_jobs, "examine", functools.partial(_examined, tests_of_jobs.examine)):
        yield


@contextmanager
def rehearsals() -> Iterator[None]:
    """Inside, the release of a network that was rehearsed before is not rehearsed again."""
    rehearsing = sys.modules.get(_REHEARSED_BY)
    if rehearsing is None:  # nothing was trained yet in this process
        yield
        return
    rehearse = functools.partial(_rehearsed, rehearsing.rehearse_release)
    with mock.patch.object(rehearsing, "rehearse_release", rehearse):
        yield


@contextmanager
def trees(arguments: Sequence[str] | None) -> Iterator[None]:
    """In a command that audits, quantile regression grows few trees: in a small audit, they take most of the time."""
    if not arguments or arguments[0] != "audit":
        yield
        return
    with mock.patch("audits.membership.quantile._TREES", FEW_TREES):
        yield


def forget() -> None:
    """Drop the compositions that the program itself keeps: something that they rest on was replaced, or put back."""
    if ledger := sys.modules.get("privctl.accounting.ledger"):
        ledger._composed_in_order.cache_clear()


@contextmanager
def epsilons() -> Iterator[None]:
    """Inside, the epsilon of a ledger is computed once."""
    ledger, calibrate = (sys.modules.get(f"privctl.accounting.{name}") for name in ("ledger", "calibrate"))
    if ledger is None or calibrate is None:
        yield
        return
    found = _remembering(ledger.order_epsilons)
    with mock.patch.object(ledger, "order_epsilons", found), mock.patch.object(calibrate, "order_epsilons", found):
        yield


def _examined(examine: Callable[..., Any], network: nn.Module, task: Any, limits: Any, stages: Any, device: Any) -> Any:
    key = _key(network, task, limits, stages, device)
    if key is None or key not in _PASSED:
        found = examine(network, task, limits, stages, device)
        if key is None:
            return found
        _PASSED[key] = found, [set(engine._failed) for engine in _engines(stages)]
    found, unable = _PASSED[key]
    for engine, methods in zip(_engines(stages), unable, strict=True):
        engine._failed |= methods  # what a self-test finds out about methods, the run goes by
    return found


def _rehearsed(
    rehearse: Callable[..., None], job: Any, workers: Any, network: nn.Module, *, merge: bool = False
) -> None:
    """Rehearse a release, or only make and delete its folder if the same one was rehearsed before."""
    from privctl.storage.atomic import PendingFolder

    request = job.request
    known = not merge and workers.size == 1 and not request.resume and not request.model.adapter_only
    key = _release_key(job.model, network) if known else None
    if key is not None and key in _REHEARSED:
        with PendingFolder(request.output, public=False):
            return
    rehearse(job, workers, network, merge=merge)
    if key is not None:
        _REHEARSED.add(key)


def _release_key(model: Any, network: nn.Module) -> bytes | None:
    """A digest of all that a rehearsal writes and reads; None where that cannot be told."""
    import torch

    found = hashlib.blake2b()
    _add_network(found, network)
    generation = getattr(network, "generation_config", None)
    given = getattr(model.companion, "init_kwargs", {})
    settings = {name: value for name, value in given.items() if name != "name_or_path"}
    facts = (model.text.context, model.text.vocabulary, model.text.pad, model.text.once) if model.text else ()
    found.update(repr((model.task, facts, torch.get_num_threads(), torch.get_default_dtype())).encode())
    found.update(b"" if generation is None else generation.to_json_string().encode())
    found.update(json.dumps([settings, getattr(model.companion, "chat_template", None)], default=str).encode())
    kept = io.BytesIO()
    try:
        _Pickler(kept).dump((model.companion, model.images, model.sounds))
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    found.update(kept.getvalue())
    return found.digest()


def _engines(stages: Sequence[Any]) -> list[Any]:
    """The derivatives that are taken in ``stages``."""
    return [stage.view.engine for stage in stages if hasattr(stage.view, "engine")]


def _key(network: nn.Module, task: Any, limits: Any, stages: Sequence[Any], device: Any) -> bytes | None:
    """A digest of all that the self-test reads; None where that cannot be told."""
    import torch

    from privctl.train.contribution.probes import probes

    views = [_view_key(stage.view, network) for stage in stages]
    if None in views:
        return None
    found = hashlib.blake2b()
    _add_network(found, network)
    asked = [(stage.name, stage.rounding, stage.reduced) for stage in stages]
    found.update(repr((asked, views, limits, device, torch.get_num_threads(), torch.get_default_dtype())).encode())
    kept = io.BytesIO()
    try:
        _Pickler(kept).dump(probes(task, limits))
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    found.update(kept.getvalue())
    return found.digest()


def _add_network(found: Any, network: nn.Module) -> None:
    """Add to the digest ``found`` what a network consists of."""
    import torch

    for name, module in network.named_modules():
        hooks = [len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module)]
        found.update(repr((name, type(module), id(type(module)), module.training, hooks, module.extra_repr())).encode())
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        found.update(repr((name, tensor.dtype, tensor.shape, tensor.requires_grad, tensor.device)).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    config = {} if getattr(network, "config", None) is None else network.config.to_dict()
    config.pop("_name_or_path", None)
    found.update(json.dumps(config, sort_keys=True, default=repr).encode())


def _view_key(view: Any, network: nn.Module) -> tuple[Any, ...] | None:
    """What tells a stage's view from others of the same network; None for one whose arguments are not known here."""
    from privctl.train.contribution.views import ClippedDerivatives, ClippedGradients, LossOnly

    if type(view) is ClippedDerivatives and view.engine.network is network:
        return _derivatives_key(view)
    if type(view) not in (ClippedGradients, LossOnly) or view.network is not network:
        return None
    around = _around_key(view.around, network)
    if around is None:
        return None
    return (
        type(view).__name__,
        around,
        *((view.clipping, view.rounds, view.passes) if type(view) is ClippedGradients else ()),
    )


def _derivatives_key(view: Any) -> tuple[Any, ...]:
    """How derivatives are taken, and of how many groups at once.

    Which groups, and along what, is left out, as each run draws its own and the self-test must pass with any.
    """
    engine = view.engine
    groups = [len(fired) for fired, _ in view.fired_groups]
    return (type(view).__name__, engine.method, engine.step, sorted(engine._failed), groups)


def _around_key(around: Any, network: nn.Module) -> tuple[Any, ...] | None:
    """The format and the layers of a rehearsal in few bits.

    The seed of its rounding is left out, as each run draws its own and the self-test must pass with any.
    """
    from privctl.train.contribution.views import _unchanged
    from privctl.train.methods.dpquant.quantization import Quantization

    if around is _unchanged:
        return ("as it is",)
    precision = getattr(around, "__self__", None)
    if type(precision) is not Quantization or getattr(around, "__func__", None) is not Quantization.rehearsal:
        return None
    layers = precision.layers
    return (layers.format, layers.names, precision.schedule.names) if layers.network is network else None


class _Pickler(pickle.Pickler):
    """Tokenizers without the folder that they came from."""

    def reducer_override(self, value: Any) -> Any:
        from transformers import PreTrainedTokenizerFast

        if not isinstance(value, PreTrainedTokenizerFast):
            return NotImplemented
        special = [str(value.special_tokens_map), value.padding_side, value.truncation_side, value.model_max_length]
        return str, (json.dumps([type(value).__name__, value.backend_tokenizer.to_str(), special]),)


@contextmanager
def bounds(draws: int | None = None) -> Iterator[None]:
    """Inside, bounds of one ledger are computed once, however many reports share it; first weights are drawn once.

    The network of one configuration is built once too.

    With ``draws``, what noise alone does to weights is known from so many at most: bounds hold all the same, and are a
    little looser.
    """
    from verify.losses import secret
    from verify.recompute import curve_posteriors, ledger, risk
    from verify.weights import check, configuration, law, start

    with ExitStack() as patches:
        for module, names in (
            (ledger, ("epsilon_of", "pure_epsilon", "bounds")), (risk, ("advantage", "power")),
            (curve_posteriors, ("power",)),
            (secret, ("information", "information_about_records")),
        ):  # fmt: skip
            for name in names:
                patches.enter_context(mock.patch.object(module, name, _remembering(getattr(module, name))))
        for module, name, value in (
            (law, "_DRAWS", draws or law._DRAWS),
            (check, "law_of", _law_of(draws or law._DRAWS)),
            (start, "_network", functools.partial(_drawn, start._network)),
            (configuration, "built", functools.partial(_built, configuration.built)),
        ):
            patches.enter_context(mock.patch.object(module, name, value))
        yield


@contextmanager
def bounds_if_loaded(draws: int) -> Iterator[None]:
    """``bounds`` where this process has verified something; before, nothing can be remembered."""
    with bounds(draws) if "verify.run" in sys.modules else nullcontext():
        yield


@functools.cache
def _law_of(draws: int) -> Callable[..., Any]:
    """The law of moves by noise alone, remembered apart for each number of ``draws``."""
    from verify.weights import law

    return functools.lru_cache(maxsize=None)(law.law_of.__wrapped__)


_NETWORKS: dict[tuple[object, ...], Any] = {}


def _drawn(draw: Callable[..., Any], output: Path, task: str, seed: int, start: Path | None) -> Any:
    """The network before its first step, once for each model and configuration as they lie there."""
    read = [output, output.with_name("config.json"), *([] if start is None else _files(start))]
    key = (task, seed, start, *((path, *_as_it_lies(path)) for path in read))
    if key not in _NETWORKS:
        if len(_NETWORKS) >= 16:
            del _NETWORKS[next(iter(_NETWORKS))]
        _NETWORKS[key] = draw(output, task, seed, start)
    return copy.deepcopy(_NETWORKS[key])


_BUILT: dict[tuple[object, ...], Any] = {}


def _built(build: Callable[..., Any], folder: Path, path: Path, task: str, released: Any) -> Any:
    """The network of a configuration, without weights, once for its bytes and the shapes of ``released`` tensors."""
    place = folder / "config.json"
    shapes = tuple((info.name, info.dtype, tuple(info.shape)) for _, info in released.tensors())
    key = (place.read_bytes() if place.is_file() else None, shapes, task)
    if key not in _BUILT:
        _BUILT[key] = build(folder, path, task, released)
    return _BUILT[key]  # verify reads it only


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir()) if folder.is_dir() else [folder]


def _as_it_lies(path: Path) -> tuple[int, ...]:
    if not path.exists():
        return ()
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@functools.cache
def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    cached = functools.lru_cache(maxsize=None)(function)

    def call(*args: Any, **named: Any) -> Any:
        key = [tuple(argument) if isinstance(argument, list) else argument for argument in args]
        try:
            hash((*key, *named.values()))
        except TypeError:
            return function(*args, **named)
        return cached(*key, **named)

    return call
