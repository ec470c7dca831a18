"""pyselfspec generate: a prompt in, text out, one closing line about how it went."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import cloup

from ..masks.layer_mask import LayerMask
from ..runtime import _lib, vocabulary
from ..runtime.context import Context
from ..runtime.model import Model
from ..runtime.sampling import SamplingParams
from ..speculate import candidates
from ..speculate.adapt import Adapt
from ..speculate.candidates import State
from ..speculate.completion import CONTEXT_FULL, INTERRUPTED, N_PREDICT, Completion
from ..speculate.controllers.fixed import Fixed
from ..speculate.report import Explainer, closing_line, report
from ..speculate.residual import MATCH, RESIDUAL, VERIFY
from ..util.files import locked
from ._chat_hint import suggest_chat
from ._drafting import (
    adapt_from,
    adapt_options,
    adapts,
    controller_from,
    describes_mask,
    draft_from,
    draft_options,
    drafter_options_from,
    mask_from,
)
from ._options import (
    MAX_TEXT,
    STDIN,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    n_predict_option,
    open_model,
    parse_tokens,
    read_text,
    require_one_reader_of_stdin,
)
from ._sampling import sampling_from, sampling_options

N_WARM_UP = 16  # tokens
KEEP_S = 10.0  # between two times that what was learned is saved


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that decides the text and the speed of a run."""

    prompt: str | tuple[int, ...]
    n_predict: int
    draft: str | None
    options: Any
    mask: LayerMask | None
    profile: bool
    controller: Fixed | str
    sampling: SamplingParams
    stop: tuple[str, ...]
    verify: str
    unverified: bool
    adapt: Adapt | None

    @property
    def is_text(self) -> bool:
        """Ids in, ids out."""
        return isinstance(self.prompt, str)

    def completion(self, context: Context) -> Completion:
        return Completion(
            context,
            self.prompt,
            n_predict=self.n_predict,
            draft=self.draft,
            options=self.options,
            mask=self.mask,
            profile=self.profile,
            controller=self.controller,
            sampling=self.sampling,
            stop=self.stop,
            verify=self.verify,
            unverified=self.unverified,
            adapt=self.adapt,
        )

    @property
    def plain(self) -> Request:
        """The same text without drafts."""
        return replace(
            self, draft=None, options=None, mask=None, verify=MATCH, unverified=False, adapt=None
        )


@cloup.command(name="generate")
@model_argument
@cloup.option_group(
    "Text",
    cloup.option("-p", "--prompt", help="The text to continue."),
    cloup.option("-f", "--file", "prompt_file", help="Read the prompt from a file, - for stdin."),
    cloup.option(
        "--prompt-tokens",
        metavar="IDS",
        callback=parse_tokens,
        help="Token ids as the prompt; only ids come out of models without a tokenizer.",
    ),
    n_predict_option(N_PREDICT),
    cloup.option(
        "--stop", multiple=True, help="End the text before this string; may be given several times."
    ),
)
@cloup.option_group(
    "What it shows",
    cloup.option(
        "--compare",
        is_flag=True,
        help="Also run plain decoding; show both speeds and whether the texts are equal.",
    ),
    cloup.option(
        "--explain",
        is_flag=True,
        help="Say on stderr where the tokens come from, and when and why drafting starts or stops.",
    ),
)
@draft_options
@adapt_options
@cloup.option_group(
    "Checks of drafts",
    cloup.option(
        "--verify",
        type=click.Choice(VERIFY),
        default=MATCH,
        show_default=True,
        help="match: a seed gives the text of plain decoding. residual: draft tokens are drawn at "
        "the temperature too, so more are accepted; another text of the same distribution.",
    ),
    cloup.option(
        "--unverified",
        is_flag=True,
        help="For research: the mask writes the text itself, as --exit-layer N does with the first "
        "N blocks. It is not the model's own text.",
    ),
)
@sampling_options
@context_options
@common_options
def command(model: str, as_json: bool, compare: bool, explain: bool, **options: Any) -> None:
    """Continue a prompt, faster than plain decoding and with the same text.

    Tokens are drafted by copying what followed the same words before, by a part of the model where
    a mask is known, or by another model, see --draft; the model verifies them all. Only what
    follows the prompt is printed.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".

    \b
    pyselfspec generate -p "Once upon a time"
    pyselfspec generate model.gguf -f prompt.txt --temp 0 --skip-attn 5,7-9 --compare
    pyselfspec generate model.gguf -f prompt.txt --exit-layer 8 --explain
    pyselfspec generate model.gguf -f prompt.txt --draft ngram+model:small.gguf
    pyselfspec generate model.gguf -f prompt.txt -n 2000 --adapt-state masks.json
    """
    draft = draft_from(options)
    if draft is None and describes_mask(options) and not options["unverified"]:
        raise click.UsageError("--draft off drafts nothing, so it takes no mask")
    if draft is None and adapts(options):
        raise click.UsageError("--draft off drafts nothing, so there is no mask to adapt")
    if options["unverified"] and not describes_mask(options):
        raise click.UsageError("--unverified needs a mask to write with, like --exit-layer 4")
    if draft is None and options["verify"] == RESIDUAL:
        raise click.UsageError("--draft off drafts nothing, so there is nothing to verify")
    controller = controller_from(options)
    prompt_file = _prompt_file(options)
    require_one_reader_of_stdin(prompt_file, options["mask_file"], options["grammar_file"])
    prompt = read_text(prompt_file, MAX_TEXT) if prompt_file is not None else _given_prompt(options)
    sampling = sampling_from(options).with_seed()

    state = options["adapt_state"]
    with (
        nullcontext() if state is None else locked(state, "give another --adapt-state"),
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        request = Request(
            prompt=prompt,
            n_predict=options["n_predict"],
            draft=draft,
            options=drafter_options_from(loaded.n_layer, options),
            mask=mask_from(loaded.n_layer, options),
            profile=options["profile"] == "auto",
            controller=controller,
            sampling=sampling,
            stop=options["stop"],
            verify=options["verify"],
            unverified=options["unverified"],
            adapt=adapt_from(loaded, options),
        )
        completion = request.completion(context)
        if compare:
            if completion.draft is None:
                raise click.UsageError(
                    "nothing to compare with plain decoding: nothing is drafted here"
                )
            _warm_up(request, completion.prompt, context)
            context.sequence().drop()  # both runs read the prompt
        keeper = _Keeper(completion, loaded, state)
        finished = _run(
            completion, keeper, show=not as_json, as_text=request.is_text, explain=explain
        )
        plain = None
        if compare and finished:
            context.sequence().drop()
            plain = request.plain.completion(context)
            finished = _run(plain, _Keeper(plain), show=False, as_text=False)
            plain = plain if finished else None
        if as_json:
            click.echo(json.dumps(report(completion, model, plain)))
        else:
            suggest_chat(completion, model)
            if completion.finish_reason == CONTEXT_FULL:
                click.echo(f"the context of {context.n_ctx} tokens is full; see -c", err=True)
            if _needs_chat(completion):
                click.echo("nothing follows; to ask this model, use pyselfspec chat", err=True)
            line = closing_line(completion, plain, verbose=explain or _lib.is_verbose())
            click.echo(line, err=True)
        completion.remember()
        keeper.save()
    if not finished:
        raise KeyboardInterrupt  # the status tells, too


def _prompt_file(options: dict[str, Any]) -> str | None:
    """Where the prompt is read from, None when the command line holds it."""
    given = [
        name for name in ("prompt", "prompt_file", "prompt_tokens") if options[name] is not None
    ]
    if len(given) > 1:
        raise click.UsageError("give one prompt: -p, -f or --prompt-tokens")
    if not given and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError(
            "give a prompt: -p TEXT, -f FILE, --prompt-tokens IDS, or through a pipe"
        )
    return options["prompt_file"] if given else STDIN


def _given_prompt(options: dict[str, Any]) -> str | tuple[int, ...]:
    prompt: str | tuple[int, ...] = options["prompt"]
    return options["prompt_tokens"] if prompt is None else prompt


def _run(
    completion: Completion,
    keeper: _Keeper,
    *,
    show: bool,
    as_text: bool,
    explain: bool = False,
) -> bool:
    """Generate, streaming to stdout when asked to; False when Ctrl-C cut the text off."""
    explainer = Explainer(completion)
    held: list[str] = []  # lines of the explanation
    on_terminal = sys.stdout.isatty()  # they come after the text there, not in the middle of it
    try:
        for piece in completion:
            if show and as_text:
                click.echo(piece, nl=False)
            keeper.save_now_and_then()
            if explain:
                held += explainer.lines()
                if not on_terminal:
                    _say(held)
    except KeyboardInterrupt:
        completion.finish_reason = INTERRUPTED
    if show:
        click.echo("" if as_text else ",".join(map(str, completion.tokens)))
    if explain:
        _say(held + explainer.last_lines())
    return completion.finish_reason != INTERRUPTED


def _say(lines: list[str]) -> None:
    """Move lines to stderr."""
    for line in lines:
        click.echo(line, err=True)
    lines.clear()


def _needs_chat(completion: Completion) -> bool:
    """Models that were made to chat often end a text at once that does not look like a chat."""
    ended_at_once = completion.finish_reason == "eog" and not completion.text
    return ended_at_once and vocabulary.chat_template(completion.context.model) is not None


class _Keeper:
    """Saves what adapting has learned: at the end, and meanwhile, for the case that there is no
    end."""

    def __init__(
        self, completion: Completion, model: Model | None = None, path: Path | None = None
    ) -> None:
        self._adaptation = None if path is None else completion.adaptation
        self._model = model
        self._path = path
        self._saved_at = time.monotonic()
        self._saved: State | None = None

    def save_now_and_then(self) -> None:
        if self._adaptation is not None and time.monotonic() - self._saved_at >= KEEP_S:
            with suppress(OSError):  # the text goes on; whoever saves at the end is told
                self.save()

    def save(self) -> None:
        if self._adaptation is None or self._adaptation.state is self._saved:
            return
        assert self._model is not None and self._path is not None
        state = self._adaptation.state
        self._saved_at = time.monotonic()
        candidates.save(state, self._model, self._path)
        self._saved = state


def _warm_up(request: Request, prompt: Sequence[int], context: Context) -> None:
    """A few tokens each way, so that whichever run comes first does not pay for starting up; behind
    another prompt, so that nothing of the text is known before."""
    options = tuple(_forgetful(each) for each in request.options or ()) or None
    other = replace(
        request,
        prompt=tuple(reversed(prompt)),
        n_predict=min(request.n_predict, N_WARM_UP),
        options=options,
        stop=(),
        adapt=None,
    )
    for each in (other, other.plain):
        for _piece in each.completion(context):
            pass


def _forgetful(options: Any) -> Any:
    """Options with which a text is not remembered."""
    return replace(options, session=False, file=None) if hasattr(options, "session") else options
