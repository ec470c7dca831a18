"""A trained head's file drafts what torch computed while it learned."""
import numpy as np
import torch
from head_oracle import drafter_of
from pathlib import Path
