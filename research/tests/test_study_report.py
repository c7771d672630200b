"""A study's report begins with what its claims came to.

Can't see: the figures of committed reports, whose cells are not all in a clone.
"""

import json
import types

import pytest

from research.experiments import report, study
from research.experiments.intervals import AGREES, CANNOT_TELL, DISAGREES

REPORTS = sorted(study.HERE.glob("results/cpu/*/claims.json"))


@pytest.mark.parametrize("claims", REPORTS, ids=lambda path: path.parent.name)
def test_committed_reports_sum_up_their_claims(claims):
    found = json.loads(claims.read_text(encoding="utf-8"))
    said = (claims.parent / "report.md").read_text(encoding="utf-8").splitlines()[2]
    claims, verdicts = (
        [types.SimpleNamespace(**{key: each[key]}) for each in found] for key in ("text", "verdict")
    )
    assert said == report._summary(claims, verdicts)
    assert said.startswith(f"Of {len(found)} claim")
    for verdict in (AGREES, DISAGREES, CANNOT_TELL):
        count = sum(each["verdict"] == verdict for each in found)
        assert (f" {verdict} on {count}" in said) if count else f" {verdict} on" not in said
    for each in found:
        assert (each["text"] in said) == (each["verdict"] != CANNOT_TELL)
