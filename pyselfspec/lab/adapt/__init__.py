"""Masks that change while a text is generated; what is known of them is kept across runs.

Models that were not trained for early exits have hardly a sublayer to spare, so this rarely pays.
"""
