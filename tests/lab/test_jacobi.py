"""Jacobi drafts and their observers on a tiny model."""

from listeners import Listener

from pyselfspec import Sampler
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.types import Draft


def test_a_real_model_is_heard_behind_rejected_tokens(tiny, new_context):
    """Tokens decoded in a separate context have the same likeliest next token."""
    model = tiny("llama", seed=3)
    context, other = new_context(model), new_context(model)
    prompt = [5, 9, 30, 7]

    class Wrong(Listener):
        def draft(self, history, limit):
            self.before = list(history)
            return Draft.chain(20 + (len(history) + i) % 9 for i in range(limit.n_max))

    listener = Wrong(None)
    with Sampler(model) as sampler:
        list(
            generate_steps(
                context,
                prompt,
                drafter=listener,
                controller=Fixed(4, p_min=0),
                sampler=sampler,
                n_predict=12,
            )
        )
    n_rejected = 0
    for before, draft, verdict, said in listener.heard:
        for row, token in said.items():
            other.sequence().drop()
            other.decode([*before, *draft.token_ids[:row]], outputs="last")
            n_text = len(before) + row
            assert token == other.argmax(n_text - 1)[0]
            n_rejected += row > verdict.n_accepted
    assert n_rejected > 10
