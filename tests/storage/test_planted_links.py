"""Links in folders that everybody may write to are followed only if they are one's own, or the folder's owner's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError
from privctl.storage.atomic import write_bytes


@pytest.mark.parametrize(
    ("mode", "owner", "followed"), [(0o1777, 1, False), (0o1777, 0, True), (0o777, 1, True), (0o1755, 1, True)]
)
def test_a_link_of_another_user_leads_nowhere(
    mode: int, owner: int, followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does for links that are opened (``fs.protected_symlinks``); ``owner`` 1 is another user."""
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    (shared / "out.json").symlink_to(elsewhere)
    shared.chmod(mode)
    genuine = os.lstat

    def of_another(path: Path) -> os.stat_result:
        fields = list(genuine(path))
        fields[4] += owner
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", of_another)
    if followed:
        write_bytes(shared / "out.json", b"{}")
    else:
        with pytest.raises(CommandError, match=r"out\.json is a link that another user placed in a folder"):
            write_bytes(shared / "out.json", b"{}")
    assert elsewhere.exists() is followed
    assert (shared / "out.json").is_symlink()
