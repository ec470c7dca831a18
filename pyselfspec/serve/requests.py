"""Reads the fields that requests of all endpoints share: drafters, sampling and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import MaskError
from ..masks.layer_mask import LayerMask
from ..runtime.model import Model
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate import drafters
from ..speculate.config import AUTO, OFF, DraftConfig
from ..speculate.draft_names import COLON, SIGN, Names, split
from ..speculate.picture_drafts import drafting_with_pictures
from .adapters import ServedAdapters
from .errors import ApiError
from .schemas import MaskSettings, TextRequest
from .sources import corpus_of, files_by_drafter, with_corpus


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Turns fields of requests into parameters of jobs.

    n_ctx: most tokens of a text. n_share: tokens of the context per slot when all are in use.
    sampling, drafting: defaults for fields that a request leaves out; the files of `drafting` are
    the only ones that are read. sources: names of the drafters that work on this server.
    """

    model: Model
    n_ctx: int
    n_share: int
    sampling: SamplingParams
    default_drafting: DraftConfig
    sources: tuple[str, ...]
    adapters: ServedAdapters

    def drafting(self, request: TextRequest, *, has_pictures: bool = False) -> DraftConfig:
        """Return how to draft. Raises ApiError for unknown drafters, MaskError for a bad mask.

        has_pictures: whether the prompt has some; drafters of the server that do not read them are
            left out then.
        """
        fields, drafting = request.pyselfspec, self.default_drafting
        if has_pictures and drafting.draft is not None:
            drafting = drafting_with_pictures(drafting)
        if fields is None:
            return drafting
        if "draft" in fields.model_fields_set:
            drafting = drafting.with_draft(self._draft(fields.draft))
        if fields.mask is not None:
            if drafting.draft is None:
                raise ApiError(
                    400, "plain decoding skips nothing; leave out the mask", param="mask"
                )
            drafting = replace(drafting, mask=_mask(fields.mask, self.model.n_layer), options=())
        if fields.corpus is not None and drafting.draft is not None:
            drafting = self._with_corpus(drafting, fields.corpus)
        return drafting

    def _with_corpus(self, drafting: DraftConfig, given: str) -> DraftConfig:
        """Return how to draft with a folder to copy from. Raises ApiError for one outside the
        server's."""
        allowed = corpus_of(self.default_drafting)
        if allowed is None:
            raise ApiError(
                400,
                "this server copies from no folder; start it with --draft ngram -o corpus=DIR",
                param="pyselfspec.corpus",
            )
        top = allowed.resolve()
        try:
            folder = (top / given).resolve()
            is_inside = folder.is_relative_to(top) and folder.is_dir()
        except (OSError, ValueError, RuntimeError):
            is_inside = False
        if not is_inside:
            raise ApiError(
                400,
                "corpus is a folder within the one that the server was started with",
                param="pyselfspec.corpus",
            )
        return with_corpus(drafting, folder)

    def _draft(self, text: str | None) -> Names | None:
        if text in (None, OFF):
            return None
        if text == AUTO:
            return AUTO
        names, files = text.split(SIGN), files_by_drafter(self.default_drafting)
        for name in names:
            if not self._may_work(name):
                raise ApiError(400, self._why_not(name), param="pyselfspec.draft")
        default = self.default_drafting.names
        if draft_label(default) == text:
            return default  # with its options
        return tuple(f"{name}{COLON}{files[name]}" if name in files else name for name in names)

    def _may_work(self, name: str) -> bool:
        """Return whether to try a drafter. Experiments without a file are, although the server has
        not resolved them: the engine raises the error of one that does not work."""
        return name in self.sources or (
            name in drafters.experiments() and not drafters.takes_file(name)
        )

    def _why_not(self, name: str) -> str:
        """Return the message for a drafter that does not work on this server."""
        available = f"this server has {', '.join((AUTO, OFF, *self.sources))}"
        if name not in drafters.all_names():
            return f"there is no drafter {name!r}; {available}"
        if drafters.takes_file(name) and name not in files_by_drafter(self.default_drafting):
            return (
                f"the drafter {name} needs a file, given when the server is started: "
                f"--draft {name}:FILE; {available}"
            )
        return f"the drafter {name} does not work with this model; {available}"

    def grammar(self, request: TextRequest) -> str | None:
        """Return the grammar that a request gives, "" for none; without the field the server's."""
        given = self.sampling.grammar if request.grammar is None else request.grammar
        return given or None

    def samplings(
        self, request: TextRequest, grammar: str | None, n: int | None = None
    ) -> list[SamplingParams]:
        """Return the sampling of each choice. Seeds count up from that of the first.

        grammar: of the answers. n: number of choices, by default that of the request.
        """
        given = ((name, getattr(request, name)) for name in TextRequest.SAMPLING)
        fields = {name: value for name, value in given if value is not None}
        if request.logit_bias is not None:
            fields["logit_bias"] = self._bias(request.logit_bias)
        common = replace(self.sampling, **fields, grammar=grammar).with_seed()
        first = common.seed if request.seed is None else request.seed
        assert first is not None
        return [replace(common, seed=(first + i) % (SEED_MAX + 1)) for i in range(n or request.n)]

    def _bias(self, biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        """Return (token, bias) pairs. Raises ApiError for a key that is not a token id."""
        n_vocab = self.model.n_vocab
        for name in biases:
            if not (
                name.isascii() and name.isdecimal() and len(name) <= 12 and int(name) < n_vocab
            ):
                raise ApiError(
                    400,
                    f"logit_bias: token ids are 0 to {n_vocab - 1} here, got {name[:40]!r}",
                    param="logit_bias",
                )
        return tuple((int(name), bias) for name, bias in biases.items())

    def n_predict(self, prompt: Sequence[int], given: int | None, default: int | None) -> int:
        """Return the most tokens to generate after this prompt.

        given: from the request. default: used without it; None for what is left of a slot's share
        of the context. Raises ApiError for a prompt that leaves no room.
        """
        n_room = self.n_ctx - len(prompt)
        if n_room < 1:
            raise self.too_long(str(len(prompt)))
        if given is None and default is None:
            given = max(self.n_share - len(prompt), self.n_share // 2, 1)
        return min(given or default or 1, n_room)

    def too_long(self, n_tokens: str) -> ApiError:
        """Return the error for a prompt of n_tokens tokens, which is too long."""
        return ApiError(
            400,
            f"the prompt has {n_tokens} tokens, the context {self.n_ctx}; give a larger -c or a "
            "shorter prompt",
            code="context_length_exceeded",
        )


def draft_label(draft: Any) -> str | None:
    """Return the names of drafters without their files, joined by +; None for plain decoding."""
    if draft is None or draft == AUTO:
        return draft  # type: ignore[no-any-return]
    return SIGN.join(each.name for each in split(draft, drafters.all_names()))


def _mask(fields: MaskSettings, n_layer: int) -> LayerMask:
    if fields.n_layer not in (None, n_layer):
        raise MaskError(f"the mask is for {fields.n_layer} blocks, the model has {n_layer}")
    if fields.exit_layer is not None:
        if fields.skip_attn or fields.skip_ffn:
            raise MaskError("give exit_layer, or skip_attn and skip_ffn, not both")
        return LayerMask.early_exit(n_layer, fields.exit_layer)
    return LayerMask(n_layer, frozenset(fields.skip_attn), frozenset(fields.skip_ffn))
