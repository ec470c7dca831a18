"""Experiments of pyselfspec/lab, found by the entry points of the installed package."""

from pyselfspec.speculate import controllers


def test_controllers_of_the_lab_have_names():
    assert set(controllers.names()) == {"auto", "fixed"}
    assert set(controllers.experiments()) == {"adaptive", "product"}
