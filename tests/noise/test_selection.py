"""Which tensors get noise: globs, types, ties, a public base, and what each choice assumes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.domain.errors import CommandError, InputError
from privctl.domain.guarantee import AssumptionState
from privctl.noise.selection import Selection, select
from privctl.storage.reader import open_checkpoint

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 6)).astype(np.float32)
V = RNG.standard_normal((8, 6)).astype(np.float32)
BIG = RNG.standard_normal(700_000).astype(np.float32)

Choose = Callable[..., Selection]


@pytest.fixture
def choose(tmp_path: Path, write_model: Callable[..., Path]) -> Choose:
    def run(
        tensors: dict[str, np.ndarray], base: dict[str, np.ndarray] | None = None, **options: list[str]
    ) -> Selection:
        model = write_model(tmp_path / "m.safetensors", tensors)
        public = write_model(tmp_path / "b.safetensors", base if base is not None else tensors)
        with open_checkpoint(model) as checkpoint, open_checkpoint(public) as other:
            return select(checkpoint, base=None if base is None else other, **options)  # type: ignore[arg-type]

    return run


def test_integers_are_left_alone(choose: Choose) -> None:
    found = choose({"w": W, "ids": np.arange(4), "mask": np.ones(3, bool)})
    assert set(found.streams) == {"w"}
    assert found.dimension == 48
    assert {a.name: a.state for a in found.assumptions} == {"integer-tensors": AssumptionState.ASSERTED}


def test_everything_floating_by_default_and_nothing_assumed(choose: Choose) -> None:
    found = choose({"w": W, "d": W.astype(np.float64)})
    assert set(found.streams) == {"w", "d"}
    assert found.assumptions == ()
    assert len(set(found.streams.values())) == 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_nan_is_not_released_without_noise_either(choose: Choose, dtype: type) -> None:
    broken = BIG.astype(dtype)
    broken[-3] = np.nan
    message = "tensor 'b', which would be released without noise, holds NaN; repair the model"
    with pytest.raises(InputError, match=message):
        choose({"w": W, "b": broken}, exclude=["b"])
    with pytest.raises(InputError, match=message):
        choose({"w": W, "b": broken}, {"b": broken})
    masked = np.where(np.isnan(broken), -np.inf, broken)
    assert set(choose({"w": W, "b": masked}, exclude=["b"]).streams) == {"w"}, "a mask holds infinity"


def test_nan_in_bf16_is_not_released_without_noise(tmp_path: Path, write_raw: Callable[..., Path]) -> None:
    header = (
        '{"b":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
    )
    for bits, holds in ((0x7F80, False), (0xFF80, False), (0x7F81, True), (0xFFC0, True), (0x3F80, False)):
        data = np.array([0, 0, bits, 0], np.uint16).tobytes() + np.array([1, 2], np.float32).tobytes()
        with open_checkpoint(write_raw(tmp_path / f"{bits}.safetensors", header, data)) as checkpoint:
            if holds:
                with pytest.raises(InputError, match="tensor 'b', which would be released without noise, holds NaN"):
                    select(checkpoint, exclude=["b"])
            else:
                assert set(select(checkpoint, exclude=["b"]).streams) == {"w"}


def test_globs_include_and_exclude_tensors(choose: Choose) -> None:
    tensors = {"a.weight": W, "a.bias": V, "b.weight": BIG}
    assert set(choose(tensors, include=["a.*"]).streams) == {"a.weight", "a.bias"}
    found = choose(tensors, include=["a.*"], exclude=["*.bias"])
    assert set(found.streams) == {"a.weight"}
    assert [a.name for a in found.assumptions] == ["excluded-tensors"]


def test_a_copy_may_not_be_left_out(choose: Choose) -> None:
    with pytest.raises(CommandError, match="'head' is left out but equals 'embed'"):
        choose({"embed": W, "head": W.copy()}, exclude=["head"])


def test_half_precision_brings_an_assumption(choose: Choose) -> None:
    names = {a.name for a in choose({"w": W, "h": W.astype(np.float16)}).assumptions}
    assert names == {"unrounded-weights"}


@pytest.mark.parametrize("options", [{"include": ["x*"]}, {"exclude": ["A.*"]}])
def test_a_glob_that_matches_nothing_is_refused(choose: Choose, options: dict[str, list[str]]) -> None:
    with pytest.raises(CommandError, match="matches no tensor"):
        choose({"a.weight": W}, **options)


def test_nothing_left_is_refused(choose: Choose) -> None:
    with pytest.raises(CommandError, match="nothing in"):
        choose({"w": W, "n": np.arange(2)}, exclude=["w"])


def test_tied_weights_share_a_stream_and_count_once(choose: Choose) -> None:
    found = choose({"embed": W, "head": W.copy(), "other": V})
    assert found.streams["embed"] == found.streams["head"] != found.streams["other"]
    assert found.dimension == 96
    assert [list(group) for group in found.tied] == [["embed", "head"]]
    assert {a.name: a.state for a in found.assumptions} == {"tied-tensors": AssumptionState.ASSERTED}


def test_constant_tensors_are_not_taken_for_tied(choose: Choose) -> None:
    found = choose({"bias1": np.zeros(9, np.float32), "bias2": np.zeros(9, np.float32), "s1": W[0] * 0 + 1})
    assert len(set(found.streams.values())) == 3
    assert not found.tied
    assert [a.name for a in found.assumptions] == ["separate-tensors"]


def test_tensors_that_differ_only_at_the_end_are_not_tied(choose: Choose) -> None:
    other = BIG.copy()
    other[-1] += 1
    assert not choose({"a": BIG, "b": other}).tied
    assert choose({"a": BIG, "b": BIG.copy()}).tied


def test_a_reshaped_copy_is_not_tied(choose: Choose) -> None:
    assert not choose({"a": W, "b": W.reshape(6, 8)}).tied


def test_tensors_of_the_public_base_are_left_alone(choose: Choose) -> None:
    other = BIG.copy()
    other[-1] += 1
    found = choose({"w": W, "v": V, "big": BIG}, base={"w": W, "big": other, "more": V})
    assert set(found.streams) == {"v", "big"}
    assert found.untouched == {"w": "equal to the public base"}
    assert [a.name for a in found.assumptions] == ["frozen-tensors"]


def test_batch_statistics_are_refused_and_leaving_them_out_voids(choose: Choose) -> None:
    tensors = {"bn.weight": W, "bn.running_var": V, "bn.num_batches_tracked": np.array(3)}
    with pytest.raises(InputError, match=r"bn\.running_var.*--norm frozen"):
        choose(tensors)
    found = choose(tensors, exclude=["*running_*"])
    assert {a.name: a.state for a in found.assumptions}["batch-statistics"] is AssumptionState.VIOLATED


def test_statistics_of_the_public_base_or_never_computed_are_left_alone(choose: Choose) -> None:
    frozen = {"bn.running_mean": V[0], "bn.running_var": V[1] ** 2}
    found = choose({"w": W, **frozen}, base={"w": V, **frozen})
    assert {a.name: a.state for a in found.assumptions} == {"frozen-tensors": AssumptionState.ASSERTED}
    for half in (np.float16, np.float32, np.float64):
        initial = {"a.running_mean": np.zeros(6, half), "a.running_var": np.ones(6, half)}
        found = choose({"w": W, **initial})
        assert set(found.streams) == {"w"}
        assert {a.name: a.state for a in found.assumptions} == {"initial-statistics": AssumptionState.ASSERTED}
        for name in initial:
            with pytest.raises(InputError, match="holds batch statistics"):
                choose({"w": W, **initial, name: 1 - initial[name]})


def test_float_types_that_cannot_be_noised_are_refused_by_name(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    path = write_model(tmp_path / "m.safetensors", {"w": W, "q": ("F8_E4M3", np.zeros(4, np.uint8))})
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(InputError, match="'q' is F8_E4M3"):
            select(checkpoint)
        assert set(select(checkpoint, exclude=["q"]).streams) == {"w"}
