"""A claim that is given beside another is not ignored."""

from __future__ import annotations

import pytest

from privctl.cli import run


@pytest.mark.parametrize("command", [["audit"], ["audit", "canaries"]])
def test_two_claims_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [*command, "model", "--canaries", "c.json", "--claim", "8,1e-5", "--claim=1,1e-5"]
    assert run(given) == 2
    assert "--claim was given 2 times; give it once" in capsys.readouterr().err
