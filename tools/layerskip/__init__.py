"""Training of small Llama models that can draft from their own early blocks (LayerSkip)."""
