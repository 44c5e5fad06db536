"""What is said where another command uses the same output."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.domain.errors import FileSystemError
from privctl.storage.atomic import writing


def test_a_folder_that_another_command_made_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").touch()
    with (
        pytest.raises(FileSystemError, match="not empty, and another command may be using it"),
        writing(tmp_path / "theirs"),
    ):
        (tmp_path / "mine").rename(tmp_path / "theirs")
