"""Names of public parameters turned into ours."""

from __future__ import annotations

from fate.models.checkpoints.importing import Rules, rename

RULES: Rules = (
    (r"^conv(\d)\.", r"layers.\1."),
    (r"\.bn\.", ".norm."),
    (r"^layers\.(\d)\.norm", r"norms.\1"),
)


def test_every_rule_that_matches_is_applied_in_order() -> None:
    assert rename("conv1.weight", RULES) == "layers.1.weight"
    assert rename("conv2.bn.bias", RULES) == "norms.2.bias"  # the third rule sees what the first two wrote
    assert rename("head.weight", RULES) == "head.weight"
    assert rename("a.conv1.weight", RULES) == "a.conv1.weight"
