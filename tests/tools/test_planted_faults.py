"""Planted faults: each has one place in the source that it names."""

from places import ROOT

from tools.planted_faults import FAULTS


def test_every_fault_has_its_place_and_its_tests():
    for name, fault in FAULTS.items():
        source = (ROOT / "pyselfspec" / fault.file).read_text(encoding="utf-8")
        assert source.count(fault.old) == 1, name
        assert all((ROOT / "tests" / test).exists() for test in fault.tests.split()), name
