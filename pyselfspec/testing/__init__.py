"""For tests of drafters, here and in other packages: a scripted model that knows who wrote which
K/V cell, and the conformance suite that every drafter passes.

The suite needs pytest.
"""
