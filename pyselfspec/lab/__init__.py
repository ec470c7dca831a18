"""Drafters, controllers and strategies that do not pay by the project's own measurements.

They keep working under their names and are loaded only when named: entry points in pyproject.toml
register them, as those of other packages are.
"""
