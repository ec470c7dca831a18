"""Chi-square distances of samples from a distribution."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from pyselfspec.runtime.pass_result import Distribution

Prefix = tuple[int, ...]


Texts = list[Prefix]


N_EXPECTED = 5  # tokens that are expected less often are counted together


def chi_square(texts: Texts, law: Callable[[Prefix], Distribution], n: int) -> float:
    """Return chi-square of the tokens after all prefixes of n tokens, in standard deviations from
    its mean by Wilson and Hilferty; a token that cannot come makes it infinite."""
    statistic, n_free = 0.0, 0
    counts = Counter(text[: n + 1] for text in texts if len(text) > n)
    for prefix in {text[:n] for text in counts}:
        p = law(prefix)
        seen = np.array([counts[*prefix, token] for token in range(len(p))])
        if seen[p == 0].any():
            return np.inf
        expected = seen.sum() * p
        rare = expected < N_EXPECTED
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        enough = expected >= N_EXPECTED
        statistic += float(((seen - expected) ** 2 / expected.clip(1e-9))[enough].sum())
        n_free += max(0, int(enough.sum()) - 1)
    mean = 1 - 2 / (9 * n_free)
    return float(((statistic / n_free) ** (1 / 3) - mean) / (2 / (9 * n_free)) ** 0.5)


LIMIT = 3.72  # exceeded by chance once in 10 000; seeds are fixed, so never twice


def deviation(texts: Texts, law: Callable[[Prefix], Distribution]) -> float:
    return max(chi_square(texts, law, n) for n in range(3))
