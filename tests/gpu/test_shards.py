"""The group of one process in which parameters in shards are tried; what it computes is tried by ``--toy``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist

from tests.gpu import shards


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_group_of_each_device_takes_votes_on_the_processor(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: asked.update(backend=backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with shards._alone(torch.device(kind)):
        served = dist.distributed_c10d.BackendConfig(dist.Backend(asked["backend"])).get_device_backend_map()
    assert served["cpu"] == "gloo"
    assert served[kind] == {"cpu": "gloo", "cuda": "nccl"}[kind]
