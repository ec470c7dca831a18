"""The calls that tools/random_calls.py makes."""
