"""Converts sounds to a network's input, one sound at a time, with transformers' feature extractors."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    ASTFeatureExtractor,
    SeamlessM4TFeatureExtractor,
    Wav2Vec2FeatureExtractor,
    WhisperFeatureExtractor,
)

from privctl.data.pixels import FILE_NAME
from privctl.data.sounds import SoundSet
from privctl.domain.errors import InputError
from privctl.models.images import logits_in
from privctl.storage.atomic import write_bytes
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Model type -> its extractor; all others read raw samples.
_EXTRACTORS: dict[str, Any] = {
    "audio-spectrogram-transformer": ASTFeatureExtractor,
    "wav2vec2-bert": SeamlessM4TFeatureExtractor,
    "whisper": WhisperFeatureExtractor,
}
#: Extractors that truncate or pad all sounds to one length.
_FIXED_LENGTH = (ASTFeatureExtractor, WhisperFeatureExtractor)
#: Limits on an extractor's numbers, so that a malicious file cannot exhaust memory.
_LARGEST, _LARGEST_OF = 1 << 13, {"sampling_rate": 1 << 18}
#: The key of ``SoundFacts.samples`` in the file; extractors of fixed length use it differently.
_SAMPLES = "max_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundFacts:
    """The input format of a network that reads sounds.

    ``extractor`` is transformers' own. ``samples`` is the length to which every sound is truncated or zero-padded; with
    None, all sounds of a data set must have the same length. With ``masked`` the network gets an attention mask for the
    padding. Everything comes from the model or the user; computed from private sounds it would be a further release.
    """

    extractor: Any
    masked: bool
    samples: int | None = None

    @property
    def rate(self) -> int:
        """The sampling rate in Hz."""
        return int(self.extractor.sampling_rate)

    @property
    def scales_by_published(self) -> bool:
        """Whether features are scaled by nothing, or by the numbers that the extractor has unless it is told others."""
        defaults = {
            name: each.default for name, each in inspect.signature(type(self.extractor).__init__).parameters.items()
        }
        return all(getattr(self.extractor, name, None) == defaults.get(name) for name in ("mean", "std"))

    @property
    def input_name(self) -> str:
        """The name of the network's input."""
        return str(self.extractor.model_input_names[0])

    def features(self, wave: NDArray[np.float32]) -> NDArray[np.float32]:
        """The features of a sound (samples,), not padded: (samples,) or (frames, features) float32.

        Raises InputError for a sound that is too short.
        """
        given = wave if self.samples is None else wave[: self.samples]
        try:
            extracted = self.extractor(given, sampling_rate=self.rate, return_tensors="np")[self.input_name]
        except (ValueError, IndexError, AssertionError, RuntimeError) as error:
            raise InputError(f"a sound of {len(wave)} samples cannot be read: {error}; remove it") from None
        features = np.ascontiguousarray(extracted[0], np.float32)
        if not len(features) or not np.isfinite(features).all():
            reader = type(self.extractor).__name__
            raise InputError(f"a sound of {len(wave)} samples is too short for the model's {reader}; remove it")
        return features

    @property
    def length(self) -> int | None:
        """The first dimension of padded ``features``; None if sounds are not padded."""
        if self.samples is None:
            return None
        return len(self.features(np.zeros(self.samples, np.float32)))

    def padded(self, features: Sequence[NDArray[np.float32]], length: int | None = None) -> dict[str, Tensor]:
        """The network's inputs: all ``features``, padded to ``length`` or the longest, and with ``masked`` the mask."""
        length = length or max(map(len, features))
        values = np.zeros((len(features), length, *features[0].shape[1:]), np.float32)
        real = np.zeros((len(features), length), np.int64)
        for row, feature in enumerate(features):
            values[row, : len(feature)], real[row, : len(feature)] = feature, 1
        inputs = {self.input_name: torch.from_numpy(values)}
        return {**inputs, "attention_mask": torch.from_numpy(real)} if self.masked else inputs

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``preprocessor_config.json``, which transformers reads too; named like the method there."""
        content = {"feature_extractor_type": type(self.extractor).__name__, **_settings(self.extractor)}
        if not isinstance(self.extractor, _FIXED_LENGTH):
            content["return_attention_mask"] = self.masked
            if self.samples is not None:
                content[_SAMPLES] = self.samples
        write_bytes(Path(folder) / FILE_NAME, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def sound_facts(folder: Path, config: Any, samples: int | None = None) -> SoundFacts:
    """The input format of the model in ``folder``, by its ``preprocessor_config.json``; ``samples`` overrides its own.

    The extractor is that of the model type. If the file does not say whether to pass an attention mask, one is passed
    to networks with layer normalisation in the feature extractor, as transformers documents. Raises InputError for a
    file that is missing or describes another extractor.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise InputError(f"{folder} has no {FILE_NAME}, which says how sounds are read; copy the original model's")
    kind = _EXTRACTORS.get(config.model_type, Wav2Vec2FeatureExtractor)
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict) or data.get("feature_extractor_type", kind.__name__) != kind.__name__:
        raise InputError(f"{path} does not describe a {kind.__name__}; copy the original model's")
    known = {name: data[name] for name in _parameters(kind) if name in data and name != "dither"}
    for name, value in known.items():
        _check(name, value, path)
    try:
        extractor = kind(**known)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path} is refused by transformers: {error}; copy the original model's") from None
    if kind in _FIXED_LENGTH:
        return SoundFacts(extractor=extractor, masked=False)
    if kind is Wav2Vec2FeatureExtractor:
        frames = getattr(config, "feat_extract_norm", "layer") == "layer"
        masked = bool(data.get("return_attention_mask", frames))
    else:
        masked = True
    stated = data.get(_SAMPLES)
    if stated is not None and (isinstance(stated, bool) or not isinstance(stated, int) or stated < 1):
        raise InputError(f"{path} has {stated!r} as {_SAMPLES!r}; expected a number of samples, or none")
    return SoundFacts(extractor=extractor, masked=masked, samples=samples or stated)


def _parameters(kind: Any) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "kwargs")]


def _settings(extractor: Any) -> dict[str, Any]:
    return {name: getattr(extractor, name) for name in _parameters(type(extractor)) if hasattr(extractor, name)}


def _check(name: str, value: Any, path: Path) -> None:
    sound = isinstance(value, bool) or (
        isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= _LARGEST_OF.get(name, _LARGEST)
    )
    if not sound:
        raise InputError(f"{path} has {value!r} as {name!r}; copy the original model's")


def features_of(facts: SoundFacts, sounds: SoundSet, path: Path) -> list[NDArray[np.float32]]:
    """The features of each sound for the model at ``path``; raises InputError if lengths differ and are not padded."""
    features: list[NDArray[np.float32]] = []
    for wave, place in zip(sounds.waves, sounds.places, strict=True):
        features.append(facts.features(wave))
        if facts.samples is None and len(features[-1]) != len(features[0]):
            raise InputError(
                f"{place} has {len(wave)} samples and {sounds.places[0]} has {len(sounds.waves[0])}; give --max-length "
                f"N, in samples, to which every sound is cut or filled up for {path}"
            )
    return features


def sound_logits(network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The logits [n, classes] for ``inputs`` from ``SoundFacts.padded``; other entries of ``inputs`` are ignored."""
    names = ("input_values", "input_features", "attention_mask")
    return logits_in(network(**{name: inputs[name] for name in names if name in inputs}))
