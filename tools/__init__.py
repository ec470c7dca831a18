"""Programs for developers, none of which is installed.

Each is started by its path, ``python tools/vendor.py``. It finds the others as ``tools.models`` and
so on, since it puts the checkout at the end of sys.path, where an installed pyselfspec comes first.
Tests do the same.
"""
