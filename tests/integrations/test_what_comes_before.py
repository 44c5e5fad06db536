"""Private loops that begin with, or end in, what no noise covers: used optimizers, samplers, failures, buffers."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, SubsetRandomSampler, TensorDataset

import privctl
from privctl.domain.errors import CommandError, InputError
from tests.integrations.loops import Loop


def test_a_batch_that_fails_ends_the_training(tmp_path: Path) -> None:
    """Its step is missing from the weights, which shows that some record made it fail."""
    loop = Loop()
    loop.data.tensors[0][7] = math.inf
    with pytest.raises(InputError, match="not finite"):
        loop.train(epochs=50)
    place = loop.save(tmp_path / "model.safetensors")
    for go_on in (loop.train, loop.private.guarantee, lambda: loop.private.report(place)):
        with pytest.raises(CommandError, match="not stepped"):
            go_on()  # type: ignore[operator]


def test_a_file_with_more_than_the_model_gets_no_report(tmp_path: Path) -> None:
    """The report would list the further tensor, so that a gate passes a file that may hold the records themselves."""
    loop = Loop()
    loop.train()
    place = tmp_path / "model.safetensors"
    save_file({**loop.model.state_dict(), "memory": loop.data.tensors[0]}, place)
    with pytest.raises(InputError, match="holds 'memory', which the module does not have"):
        loop.private.report(place)
    loop.save(place)
    assert [each.name for each in loop.private.report(place).outputs[0].tensors] == sorted(loop.model.state_dict())


def test_steps_after_the_end_of_the_private_training_get_no_report(tmp_path: Path) -> None:
    """Without its hooks, the optimizer makes ordinary steps, of gradients that are neither clipped nor noised."""
    loop = Loop()
    loop.train()
    loop.private.close()
    loop.private.close()  # a second call changes nothing
    assert loop.private.report(loop.save(tmp_path / "model.safetensors")).guarantees
    inputs, labels = loop.data.tensors
    loop.losses(inputs, labels)().mean().backward()
    loop.optimizer.step()
    loop.private.close()
    with pytest.raises(InputError, match="the weights changed after the private training was closed"):
        loop.private.report(loop.save(tmp_path / "later.safetensors"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_a_batch_that_was_interrupted_and_passed_over_ends_the_training(kind: type[BaseException]) -> None:
    loop = Loop()
    batches = iter(loop.private.loader)
    next(batches)

    def stopped() -> Tensor:
        raise kind

    with pytest.raises(kind):
        loop.private.backward(stopped)
    with pytest.raises(CommandError, match="not stepped"):
        loop.train()
    with pytest.raises(CommandError, match="not stepped"):
        loop.private.guarantee()


def test_a_backward_that_failed_for_another_reason_can_be_repeated() -> None:
    loop = Loop()
    batches = iter(loop.private.loader)  # kept, as a loop that ends leaves its batch
    inputs, labels = next(batches)

    def full() -> Tensor:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        loop.private.backward(full)
    loop.private.backward(loop.losses(inputs, labels))
    loop.optimizer.step()
    assert loop.private.guarantee().epsilon


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {}])
def test_an_optimizer_that_took_steps_is_refused(options: dict[str, float]) -> None:
    """Its momentum is made of gradients without noise, which the first private step would release."""
    model = nn.Linear(5, 3)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, **options) if options else torch.optim.Adam(model.parameters())
    )
    loader = DataLoader(TensorDataset(torch.randn(60, 5)), batch_size=6)
    privctl.make_private(model, optimizer, loader, noise_multiplier=1.0).close()
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(CommandError, match="already took steps"):
        privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)


def test_an_optimizer_whose_state_begins_at_zero_is_accepted() -> None:
    model = nn.Linear(5, 3)
    loader = DataLoader(TensorDataset(torch.randn(60, 5)), batch_size=6)
    assert privctl.make_private(model, torch.optim.Adagrad(model.parameters()), loader, noise_multiplier=1.0)


def test_the_steps_of_an_earlier_private_training_cannot_be_left_out_of_a_report() -> None:
    loop = Loop()
    loop.train()
    loop.private.close()
    loader = DataLoader(loop.data, batch_size=6)
    wrapped = nn.Sequential(loop.model)
    below_a_head = nn.Sequential(*(layer.requires_grad_(False) for layer in loop.model), nn.Linear(3, 3))
    for model, trained in ((below_a_head, below_a_head[-1]), (wrapped.requires_grad_(True), wrapped)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        with pytest.raises(CommandError, match="would not count the earlier steps"):
            privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)
    loaded = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    loaded.load_state_dict(loop.model.state_dict())
    for copied in (loaded, copy.deepcopy(loop.model).requires_grad_(True)):
        with pytest.raises(CommandError, match="would not count the earlier steps"):
            privctl.make_private(copied, torch.optim.SGD(copied.parameters(), lr=0.1), loader, noise_multiplier=1.0)
    anew = nn.Linear(5, 3)
    assert privctl.make_private(anew, torch.optim.SGD(anew.parameters(), lr=0.1), loader, noise_multiplier=1.0)


def test_a_sampler_is_refused_as_batches_would_not_follow_it() -> None:
    model = nn.Linear(5, 3)
    data = TensorDataset(torch.randn(60, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    some = DataLoader(data, batch_size=6, sampler=SubsetRandomSampler(range(30)))
    with pytest.raises(CommandError, match="SubsetRandomSampler"):
        privctl.make_private(model, optimizer, some, noise_multiplier=1.0)
    shuffled = DataLoader(data, batch_size=6, shuffle=True)
    assert privctl.make_private(model, optimizer, shuffled, noise_multiplier=1.0)


def test_statistics_of_batches_get_no_report(tmp_path: Path) -> None:
    """Forward passes in training mode write exact means of the examples into buffers, which are saved too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    data = TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privctl.make_private(model, optimizer, DataLoader(data, batch_size=6), noise_multiplier=1.0)

    def train() -> None:
        for inputs, labels in private.loader:
            private.backward(lambda x=inputs, y=labels: F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()

    path = tmp_path / "model.safetensors"
    train()
    save_file(model.state_dict(), path)
    private.report(path)
    model.train()
    model(data.tensors[0])
    model.eval()
    save_file(model.state_dict(), path)
    with pytest.raises(InputError, match="running_mean"):
        private.report(path, force=True)


def test_weights_in_any_layout_are_trained() -> None:
    model = nn.Linear(5, 3)
    model.weight = nn.Parameter(torch.randn(5, 3).t())
    data = TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privctl.make_private(model, optimizer, DataLoader(data, batch_size=1), noise_multiplier=1.0)
    before = model.weight.detach().clone()
    for inputs, labels in private.loader:
        private.backward(lambda x=inputs, y=labels: F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
    assert not torch.equal(before, model.weight)


def test_the_step_of_an_empty_batch_is_taken_with_the_noise_of_any_other() -> None:
    """A step that is left out, or without noise, would tell that the batch was empty."""
    loop = Loop(batch=1, noise_multiplier=1.0, clip_norm=1e-3)
    moved = []
    before = torch.cat([p.detach().flatten() for p in loop.model.parameters()])

    def note(*_: object) -> None:
        nonlocal before
        now = torch.cat([p.detach().flatten().clone() for p in loop.model.parameters()])
        moved.append(now - before)
        before = now

    loop.optimizer.register_step_post_hook(note)
    loop.train(epochs=3)
    assert len(moved) == loop.private.steps_begun == 180
    spreads = [float(each.std()) for each in moved]
    assert min(spreads) > 0.5 * 0.1 * 1e-3


def test_arguments_in_each_others_place_are_named() -> None:
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=6)
    for arguments, says in (
        ((loop.optimizer, loop.model, loader), "model is of type SGD"),
        ((loop.model, loader, loop.optimizer), "optimizer is of type DataLoader"),
        ((loop.model, loop.optimizer, loop.data), "loader is of type TensorDataset"),
    ):
        with pytest.raises(CommandError, match=f"{says}; make_private takes a model, its optimizer and a DataLoader"):
            privctl.make_private(*arguments, noise_multiplier=1.0)  # type: ignore[arg-type]


def test_what_accelerate_prepared_is_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, data = nn.Linear(5, 3), TensorDataset(torch.randn(12, 5))
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=3)
    _, prepared = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    with pytest.raises(CommandError, match="accelerate prepared the optimizer"):
        privctl.make_private(model, prepared, loader, noise_multiplier=1.0)
    whole = DataLoader(data, batch_sampler=loader.batch_sampler)
    with pytest.raises(CommandError, match="not one that accelerate or a Trainer prepared"):
        privctl.make_private(model, optimizer, whole, noise_multiplier=1.0)


@pytest.mark.parametrize("part", ["record", "collate"])
def test_a_batch_that_cannot_be_loaded_ends_the_training(part: str, tmp_path: Path) -> None:
    """When the training ended would tell whether it holds the record that fails."""

    class Broken(TensorDataset):
        def __getitem__(self, row: int) -> tuple[Tensor, ...]:
            if row == 7 and part == "record":
                raise OSError("truncated")
            return super().__getitem__(row)

    def collated(items: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if part == "collate" and any(float(inputs[0]) == 7 for inputs, _ in items):
            raise OSError("truncated")
        return tuple(map(torch.stack, zip(*items, strict=True)))

    model = nn.Linear(5, 3)
    data = Broken(torch.arange(60.0)[:, None].expand(-1, 5), torch.zeros(60, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=20, collate_fn=collated)
    private = privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)
    with pytest.raises(OSError, match="truncated"):
        for _ in range(100):
            for inputs, labels in private.loader:
                private.backward(lambda x=inputs, y=labels: F.cross_entropy(model(x), y, reduction="none"))
                optimizer.step()
    place = tmp_path / "model.safetensors"
    save_file(model.state_dict(), place)
    for go_on in (lambda: next(iter(private.loader)), private.guarantee, lambda: private.report(place)):
        with pytest.raises(CommandError, match="a batch failed, in loading or in backward, and was not stepped"):
            go_on()  # type: ignore[operator]


def test_batches_of_iterators_that_are_not_kept_are_trained_on() -> None:
    loop = Loop()
    for _ in range(5):
        inputs, labels = next(iter(loop.private.loader))
        loop.private.backward(loop.losses(inputs, labels))
        loop.optimizer.step()
    kept, later = iter(loop.private.loader), iter(loop.private.loader)
    next(kept)
    kept.close()  # its batch is left, and counts
    inputs, labels = next(later)
    assert loop.private.steps_begun >= 7
    del kept
    loop.private.backward(loop.losses(inputs, labels))
    loop.optimizer.step()
    assert loop.private.guarantee().epsilon
    assert loop.private.loader.dataset is loop.data


def test_an_earlier_iterator_that_ends_leaves_no_batch_of_a_later_one() -> None:
    loop = Loop()
    earlier, later = iter(loop.private.loader), iter(loop.private.loader)
    loop.private.backward(loop.losses(*next(earlier)))
    loop.optimizer.step()
    next(later)
    earlier.close()
    with pytest.raises(CommandError, match="previous batch was not stepped"):
        next(later)


def test_a_private_training_without_a_step_is_replaced_by_the_next(tmp_path: Path) -> None:
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=6)
    loop.private = privctl.make_private(loop.model, loop.optimizer, loader, noise_multiplier=2.0)
    loop.private.close()
    loop.private = privctl.make_private(loop.model, loop.optimizer, loader, noise_multiplier=4.0)
    loop.train()
    report = loop.private.report(loop.save(tmp_path / "model.safetensors"))
    assert report.guarantees[0].noise_multiplier == 4


def test_copies_of_records_are_refused_unless_they_are_those_of_users() -> None:
    """Each copy adds up to the clip norm, which a guarantee for one record would not say."""
    data = Loop().data
    half = Subset(data, range(30))
    rare_twice = [*range(60), *torch.tensor([3, 7])]
    for copies in (
        Subset(data, rare_twice),
        ConcatDataset([half, data]),
        Subset(ConcatDataset([data, data]), [5, 65, 7]),
    ):
        model = nn.Linear(5, 3)
        optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(copies, batch_size=2)
        with pytest.raises(CommandError, match="records are copies of others"):
            privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)
        names = [int(row) for row in rare_twice] if len(copies) == 62 else [f"{row % 30}" for row in range(len(copies))]
        assert privctl.make_private(model, optimizer, loader, noise_multiplier=1.0, users=names)
    model = nn.Linear(5, 3)
    parts = ConcatDataset([half, Subset(data, range(30, 60)), TensorDataset(*data.tensors)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert privctl.make_private(model, optimizer, DataLoader(parts, batch_size=2), noise_multiplier=1.0)


def test_layers_that_are_frozen_later_are_not_trained_on_unnoticed() -> None:
    loop = Loop()
    loop.train()
    loop.model[0].requires_grad_(False)
    with pytest.raises(CommandError, match=r"'0.weight' was frozen after make_private"):
        loop.train()
    loop.model[0].requires_grad_(True)
    inputs, labels = next(iter(loop.private.loader))
    loop.private.backward(loop.losses(inputs, labels))


def test_layers_without_a_shape_are_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 5)), batch_size=3)
    with pytest.raises(InputError, match=r"'0.weight' has no shape yet; run the model once"):
        privctl.make_private(model, optimizer, loader, noise_multiplier=1.0)
    model(torch.zeros(1, 5))
    assert privctl.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0)


def test_a_frozen_copy_that_follows_the_network_is_refused_after_a_step() -> None:
    """Not only at the end of the training, when the report is refused."""
    loop = Loop()
    model = nn.ModuleDict({"student": nn.Linear(5, 3), "teacher": nn.Linear(5, 3).requires_grad_(False)})
    optimizer = torch.optim.SGD(model["student"].parameters(), lr=0.1)
    private = privctl.make_private(model, optimizer, DataLoader(loop.data, batch_size=20), noise_multiplier=1.0)

    def train() -> None:
        for inputs, labels in private.loader:
            private.backward(lambda x=inputs, y=labels: F.cross_entropy(model["student"](x), y, reduction="none"))
            optimizer.step()
            with torch.no_grad():
                model["teacher"].weight.lerp_(model["student"].weight, 0.1)

    with pytest.raises(InputError, match=r"'teacher.weight' is not trained and changed"):
        train()
    assert private.steps_begun == 1


def test_a_model_that_is_moved_later_is_refused_in_a_sentence(tmp_path: Path) -> None:
    moved = "was moved from cpu to meta after make_private"
    loop = Loop()
    loop.train()
    weights = loop.save(tmp_path / "model.safetensors")
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)
    loop.private.backward(loop.losses(inputs, labels))
    loop.model.to("meta")
    with pytest.raises(CommandError, match=f"'0.weight' {moved}"):
        loop.optimizer.step()
    with pytest.raises(CommandError, match="'0.weight' has no values"):
        loop.private.report(weights)
    early = Loop()
    inputs, labels = next(iter(early.private.loader))
    early.model[2].to("meta")
    with pytest.raises(CommandError, match=f"'2.weight' {moved}"):
        early.private.backward(early.losses(inputs, labels))


def test_a_frozen_layer_that_is_moved_later_is_refused_in_a_sentence() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    data = TensorDataset(torch.randn(30, 5), torch.randint(0, 3, (30,)))
    private = privctl.make_private(model, optimizer, DataLoader(data, batch_size=6), noise_multiplier=1.0)
    inputs, labels = next(iter(private.loader))
    model[0].to("meta")
    with pytest.raises(CommandError, match=r"'0.weight' was moved from cpu to meta"):
        private.backward(lambda: F.cross_entropy(model(inputs), labels, reduction="none"))
