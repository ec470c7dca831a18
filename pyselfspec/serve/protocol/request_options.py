"""Reads the fields that requests of all endpoints share: drafters, sampling and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, prompt_too_long
from ...runtime import json_schema
from ...runtime.lora import Adapters, scaled
from ...runtime.model import Model
from ...runtime.sampling import FLOAT_MAX, REPEAT_LAST_N_MAX, SEED_MAX, SamplingParams
from ...speculate import drafters
from ...speculate.config import AUTO, OFF, DraftConfig
from ...speculate.draft_names import COLON, SIGN, Names, split
from ...speculate.picture_drafts import drafting_with_pictures
from ..drafter_labels import copies, corpus_of, files_by_drafter, with_corpus
from ..engine.jobs import Job
from .errors import ApiError, invalid, unsupported
from .request_fields import SAMPLERS
from .schemas import AdapterScale, TextRequest

RANDOM = (-1, 2**32 - 1)  # seeds that llama-server takes for none
OFF_BELOW_0 = {
    "temperature", "top_k", "dry_multiplier", "top_n_sigma", "xtc_probability", "dynatemp_range",
}  # fmt: skip
N_BIASED = 256  # characters of a text whose tokens get a bias


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Turns fields of requests into parameters of jobs.

    n_ctx: most tokens of a prompt with its completion. n_share: tokens of the context per slot when
    all are in use.
    sampling, default_drafting, adapters: for requests that leave out these fields; the files of the
    default drafters are the only ones that are read. drafter_names: of those that work on this
    server.
    """

    model: Model
    n_ctx: int
    n_share: int
    sampling: SamplingParams
    default_drafting: DraftConfig
    drafter_names: tuple[str, ...]
    adapters: Adapters

    def chosen_adapters(self, scales: Sequence[AdapterScale] | None) -> Adapters:
        """Return the LoRA adapters of a request; adapters that it leaves out have scale 0. None:
        the default. Raises ArgumentError for ids that no adapter has."""
        if scales is None:
            return self.adapters
        return scaled(self.model.adapters, [(each.id, each.scale) for each in scales])

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
                raise invalid(
                    "mask",
                    "a mask only affects drafts, and this request has drafting off; remove the "
                    "mask",
                )
            mask = fields.mask.to_mask(self.model.n_layer)
            drafting = replace(drafting, mask=mask, options=())
        if drafting.draft is None:
            return drafting
        corpus = corpus_of(self.default_drafting)
        if fields.corpus is not None:
            return with_corpus(drafting, self._folder(corpus, fields.corpus))
        return with_corpus(drafting, corpus) if corpus and copies(drafting) else drafting

    def _folder(self, allowed: Path | None, given: str) -> Path:
        """Return a folder to copy from. Raises ApiError for one outside the allowed one."""
        if allowed is None:
            raise invalid(
                "pyselfspec.corpus",
                "this server copies from no folder; start it with --draft ngram -o corpus=DIR",
            )
        top = allowed.resolve()
        try:
            folder = (top / given).resolve()
            is_inside = folder.is_relative_to(top) and folder.is_dir()
        except (OSError, ValueError, RuntimeError):
            is_inside = False
        if not is_inside:
            raise invalid(
                "pyselfspec.corpus",
                "corpus is a folder within the one that the server was started with",
            )
        return folder

    def _draft(self, text: str | None) -> Names | None:
        if text in (None, OFF):
            return None
        if text == AUTO:
            return AUTO
        names, files = text.split(SIGN), files_by_drafter(self.default_drafting)
        for name in [each for each in names if each not in self.drafter_names]:
            if name not in drafters.all_names():
                reason = f"there is no drafter {name!r}"
            elif drafters.takes_file(name) and name not in files:
                reason = (
                    f"the drafter {name} needs a file, given when the server is started: "
                    f"--draft {name}:FILE"
                )
            elif name not in drafters.names():
                reason = f"the drafter {name} needs a server that was started with --draft {name}"
            else:
                reason = f"the drafter {name} does not work with this model"
            available = ", ".join((AUTO, OFF, *self.drafter_names))
            raise invalid("pyselfspec.draft", f"{reason}; this server has {available}")
        default = self.default_drafting.names
        if draft_label(default) == text:
            return default  # with its options
        return tuple(f"{name}{COLON}{files[name]}" if name in files else name for name in names)

    def grammar(self, request: TextRequest) -> str | None:
        """Return the grammar that a request gives, "" for none; without the field the server's.
        Raises ApiError for a schema that is not supported."""
        if request.json_schema is not None:
            try:
                return json_schema.to_gbnf(request.json_schema)
            except ArgumentError as error:
                raise invalid("json_schema", str(error)) from None
        given = self.sampling.grammar if request.grammar is None else request.grammar
        return given or None

    def jobs(
        self,
        request: TextRequest,
        prompt: tuple[int, ...],
        grammar: str | None,
        n_predict: int,
        n: int,
        **others: Any,
    ) -> list[Job]:
        """Return the jobs of n answers to a prompt. grammar: of the answers. others: fields of a
        Job that only some endpoints have. Raises ApiError, and errors of the model."""
        samplings = self._samplings(request, grammar, n)
        common = Job(
            prompt,
            n_predict,
            samplings[0],
            self.drafting(request, has_pictures=bool(others.get("pictures"))),
            adapters=self.chosen_adapters(request.lora),
            stop=request.stops,
            line_limits=request.line_limits,
            shows_tokens=request.shows_tokens,
            shows_progress=request.shows_progress,
        )
        return [replace(common, sampling=each, **others) for each in samplings]

    def _samplings(self, request: TextRequest, grammar: str | None, n: int) -> list[SamplingParams]:
        """Return the sampling of each of n choices. Seeds count up from that of the first."""
        given = ((key, getattr(request, key)) for key in TextRequest.SAMPLING)
        fields: dict[str, Any] = {key: value for key, value in given if value is not None}
        for key in OFF_BELOW_0 & fields.keys():
            fields[key] = max(0, fields[key])
        if "typical_p" in fields:
            fields["typical_p"] = min(1.0, fields["typical_p"])
        if "dry_sequence_breakers" in fields:
            fields["dry_sequence_breakers"] = tuple(fields["dry_sequence_breakers"])
        if fields.get("repeat_last_n") == -1:
            fields["repeat_last_n"] = min(self.n_ctx, REPEAT_LAST_N_MAX)
        fields |= _turned_off(request.samplers)
        biases: dict[int, float] = {}
        for name, bias in request.logit_bias or ():
            biases |= dict.fromkeys(self._biased(name), bias)
        if request.ignore_eos:
            biases |= dict.fromkeys(self.model.eog_tokens, -FLOAT_MAX)
        if biases:
            fields["logit_bias"] = tuple(biases.items())
        if request.seed is not None:
            fields["seed"] = None if request.seed in RANDOM else request.seed % (SEED_MAX + 1)
        common = replace(self.sampling, **fields, grammar=grammar).with_seed()
        assert common.seed is not None
        first = common.seed
        return [replace(common, seed=(first + i) % (SEED_MAX + 1)) for i in range(n)]

    def _biased(self, name: int | str) -> list[int]:
        """Return the tokens that a bias is for: one given by its id, or all of a text. Raises
        ApiError for a token id that there is not."""
        n_vocab = self.model.n_vocab
        digits = str(name).removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()):
            if len(digits) <= N_BIASED:
                return self.model.tokenize(str(name), add_special=False, parse_special=False)
        elif digits == str(name) and len(digits) <= 12 and int(digits) < n_vocab:
            return [int(digits)]
        raise invalid(
            "logit_bias",
            f"logit_bias: token ids are 0 to {n_vocab - 1} here, texts have at most {N_BIASED} "
            f"characters; got {str(name)[:40]!r}",
        )

    def n_predict(self, prompt: Sequence[int], given: int | None, default: int | None) -> int:
        """Return the most tokens to generate after this prompt.

        given: from the request, -1 for the rest of a slot's share of the context. default: used
        without it; None like -1. Raises ApiError for a prompt that leaves no room.
        """
        n_room = self.n_ctx - len(prompt)
        if n_room < 1:
            raise self.too_long(str(len(prompt)))
        wanted = default if given is None else given
        if wanted is None or wanted < 0:
            wanted = max(self.n_share - len(prompt), self.n_share // 2, 1)
        return min(wanted, n_room)

    def too_long(self, n_tokens: str) -> ApiError:
        """Return the error for a prompt of n_tokens tokens, which is too long."""
        return ApiError(
            400, str(prompt_too_long(n_tokens, self.n_ctx)), code="context_length_exceeded"
        )


def _turned_off(samplers: Sequence[str] | None) -> dict[str, float]:
    """Return the fields that turn off the samplers which a list leaves out. None: the list of all.
    Raises ApiError for another order than ours."""
    if samplers is None:
        return {}
    known = [each for each in samplers if each in SAMPLERS]
    if known != [each for each in SAMPLERS if each in known]:
        raise unsupported(
            "samplers", f"samplers act in the order {', '.join(SAMPLERS)}; give them in this order"
        )
    missing = SAMPLERS.keys() - {*known}
    return {name: value for each in missing for name, value in SAMPLERS[each].items()}


def draft_label(draft: Any) -> str | None:
    """Return the names of drafters without their files, joined by +; None for plain decoding."""
    if draft is None or draft == AUTO:
        return draft  # type: ignore[no-any-return]
    return SIGN.join(each.name for each in split(draft, drafters.all_names()))
