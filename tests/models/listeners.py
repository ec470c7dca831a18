"""A drafter that records the logits it observes."""

from pyselfspec.testing.fake_drafter import FakeDrafter


class Listener(FakeDrafter):
    """Keeps what it hears: of each step the text before, the draft, and a token for every row."""

    name = "listener"

    def draft(self, history, limit):
        self.before = list(history)
        return super().draft(history, limit)

    def on_verified(self, draft, verdict, best):
        self.__dict__.setdefault("heard", []).append(
            (self.before, draft, verdict, {row: best(row) for row in range(len(draft.tokens) + 1)})
        )
