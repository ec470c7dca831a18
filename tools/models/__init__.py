"""Writers of model files: random, tiny, widened, trained by others."""
