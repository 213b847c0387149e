"""`StepBatch`: the tokens that one pass brings to the GPUs that share requests or sequences. A training pass is prompts without cached tokens."""

from dysharp.base import frozen


@frozen
class StepBatch:
    """Tokens of one step of one attention group (the `tp` GPUs that share requests). Numbers may be means.

    `decodes` requests with `queries` tokens each look at `context` cached tokens. `prompts` tokens of prompts look at `seen` tokens on average,
    of which `past` were cached by earlier steps. `mean`, `usual`: tokens and `context` of a group on average over the replica, where this group has
    more than the others.
    """

    decodes: float = 0.0
    context: float = 0.0
    queries: int = 1
    prompts: float = 0.0
    seen: float = 0.0
    past: float = 0.0
    mean: float | None = None
    usual: float | None = None

    @property
    def new(self) -> float:
        """Tokens of one prompt in the step."""
        return max(1.0, 2 * (self.seen - self.past))

    @property
    def tokens(self) -> float:
        """Tokens of the step."""
        return self.decodes * self.queries + self.prompts


def prompt_batch(tokens: float, length: float, past: float = 0.0) -> StepBatch:
    """A step of prompts of `length` tokens each, `tokens` in total, of which `past` tokens each are cached already."""
    return StepBatch(prompts=tokens, seen=past + length / 2, past=past)
