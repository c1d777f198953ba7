from laconic import kernels
from laconic.cli import doctor


def test_every_finding_that_is_not_well_says_what_to_do():
    for finding in doctor.examine():
        assert finding.well or finding.remedy or "install" in finding.found or "run" in finding.found, finding


def test_a_missing_extension_is_said(monkeypatch):
    monkeypatch.setattr(kernels, "native", None)
    finding = next(finding for finding in doctor.examine() if finding.subject == "kernels")
    assert not finding.well
    assert "reference" in finding.found
    assert "missing  kernels" in doctor.text([finding])
    assert "compiler" in doctor.text([finding])
