"""Makes models of models: blocks dropped, repeated, reordered or silenced, and wider ones.

``stream`` reads and writes, ``relayer`` and ``widen`` each say what becomes of one model's tensors
and metadata. Nothing here loads a model.
"""
