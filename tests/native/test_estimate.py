"""A completion's own estimate of its speed-up."""

from pyselfspec import Completion, Fixed, SamplingParams


def test_a_completion_estimates_its_own_speedup(demo):
    prompt = "The king went home and the queen went home. " * 3
    with demo.context(n_ctx=512, n_seq_max=2) as context:
        plain = Completion(context, prompt, n_predict=8, draft=None)
        "".join(plain)
        assert plain.estimated_speedup is None
        drafted = Completion(
            context,
            prompt,
            n_predict=64,
            sampling=SamplingParams(temperature=0),
            draft="ngram",
            controller=Fixed(),
        )
        assert drafted.estimated_speedup is None, "nothing is written yet"
        "".join(drafted)
        assert drafted.estimated_speedup > 0
