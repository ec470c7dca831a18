"""pyselfspec generate: continue a prompt, then print one line about speed and drafts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
import cloup

from ..runtime import vocabulary
from ..runtime.context import Context
from ..runtime.ffi import load
from ..runtime.sampling import SamplingParams
from ..speculate.completion import N_PREDICT, Completion
from ..speculate.config import DraftConfig
from ..speculate.output.record import CONTEXT_FULL, INTERRUPTED
from ..speculate.residual import MATCH, VERIFY
from ._chat_hint import suggest_chat
from ._drafting import check_drafting, config_from, draft_options
from ._generation_report import Explainer, closing_line, report
from ._options import (
    MAX_TEXT,
    STDIN,
    common_options,
    context_options,
    model_argument,
    n_predict_option,
    open_context,
    parse_tokens,
    read_text,
    require_one_reader_of_stdin,
)
from ._sampling import sampling_from, sampling_options

N_WARM_UP = 16  # tokens

Prompt = str | tuple[int, ...]  # text or token ids


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that determines the text and the speed of a run."""

    prompt: Prompt
    n_predict: int
    config: DraftConfig
    sampling: SamplingParams
    stop: tuple[str, ...]

    def completion(self, context: Context) -> Completion:
        return Completion(
            context,
            self.prompt,
            self.config,
            n_predict=self.n_predict,
            sampling=self.sampling,
            stop=self.stop,
        )

    @property
    def plain(self) -> Request:
        """Return this request without drafts."""
        return replace(self, config=DraftConfig.plain())


text_options = cloup.option_group(
    "Text",
    cloup.option("-p", "--prompt", help="Text to continue."),
    cloup.option(
        "-f", "--file", "prompt_file", metavar="FILE", help="File with the prompt, - for stdin."
    ),
    cloup.option(
        "--prompt-tokens",
        metavar="IDS",
        callback=parse_tokens,
        help="Prompt as token ids, like 1,5,9; the output is token ids too.",
    ),
    n_predict_option(N_PREDICT),
    cloup.option("--stop", multiple=True, help="End the text before this string; repeatable."),
)

verify_option = cloup.option_group(
    "Verification",
    cloup.option(
        "--verify",
        type=click.Choice(VERIFY),
        default=MATCH,
        help="match: generate the text that plain decoding generates with the same --seed. "
        "residual: sample draft tokens too (all but copies), so that more are accepted; the text "
        "is another sample of the same distribution.",
    ),
)


@cloup.command(name="generate")
@model_argument
@text_options
@cloup.option_group(
    "Comparison and explanation",
    cloup.option(
        "--compare",
        is_flag=True,
        help="Also run plain decoding, and print both speeds and whether the texts are equal.",
    ),
    cloup.option(
        "--explain",
        is_flag=True,
        help="Explain on stderr where tokens come from, and when and why drafting starts or stops.",
    ),
)
@draft_options
@verify_option
@sampling_options
@context_options
@common_options
def command(model: str, as_json: bool, compare: bool, explain: bool, **options: Any) -> None:
    """Continue a prompt as plain decoding does, but faster.

    Draft tokens are copied from earlier text, or come from part of the model or from a smaller
    model (see --draft); the model verifies each of them. Prints the continuation without the
    prompt.

    \b
    pyselfspec generate -p "Once upon a time"
    pyselfspec generate model.gguf -f prompt.txt --temp 0 --skip-attn 5,7-9 --compare
    pyselfspec generate model.gguf -f prompt.txt --exit-layer 8 --explain
    pyselfspec generate model.gguf -f prompt.txt --draft ngram+model:small.gguf
    """
    check_drafting(options)
    prompt = read_prompt(options)
    sampling = sampling_from(options).with_seed()
    with open_context(model, options) as (loaded, context):
        config = config_from(loaded.n_layer, options)
        request = Request(prompt, options["n_predict"], config, sampling, options["stop"])
        completion = request.completion(context)
        if compare:
            _prepare_comparison(request, completion)
        as_text = isinstance(prompt, str)
        finished = write(completion, show=not as_json, as_text=as_text, explain=explain)
        plain = _plain_run(request, context) if compare and finished else None
        if as_json:
            click.echo(json.dumps(report(completion, model, plain)))
        else:
            print_notes(completion, model)
            verbose = explain or load.is_verbose()
            click.echo(closing_line(completion, plain, verbose=verbose), err=True)
        completion.remember()
    if not finished or (compare and plain is None):
        raise KeyboardInterrupt  # for the exit status


def read_prompt(options: Mapping[str, Any]) -> Prompt:
    """Return the prompt of the command line, of a file or of stdin. Raises UsageError without or
    with several prompts."""
    names = ("prompt", "prompt_tokens", "prompt_file")
    given = [name for name in names if options[name] is not None]
    if len(given) > 1:
        raise click.UsageError("give only one prompt: -p, -f or --prompt-tokens")
    if not given and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError(
            "give a prompt: -p TEXT, -f FILE, --prompt-tokens IDS, or through a pipe"
        )
    file = options["prompt_file"] if given else STDIN
    require_one_reader_of_stdin(file, options["mask_file"], options["grammar_file"])
    if file is not None:
        return read_text(file, MAX_TEXT)
    prompt: Prompt = options[given[0]]
    return prompt


def write(
    completion: Completion,
    *,
    show: bool = False,
    as_text: bool = False,
    explain: bool = False,
    after_piece: Callable[[], None] = lambda: None,
) -> bool:
    """Generate the text; return False if Ctrl-C interrupted it.

    show: write it to stdout as it is generated, as_text or as token ids at the end. explain: write
        explanations to stderr. after_piece: called after each piece of text.
    """
    explainer = Explainer(completion)
    held: list[str] = []  # lines of the explanation
    on_terminal = sys.stdout.isatty()  # lines follow the text there instead of interrupting it
    try:
        for piece in completion:
            if show and as_text:
                click.echo(piece, nl=False)
            after_piece()
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


def _plain_run(request: Request, context: Context) -> Completion | None:
    """Generate the text without drafts, from the start; return None if interrupted."""
    context.sequence().drop()
    plain = request.plain.completion(context)
    return plain if write(plain) else None


def _say(lines: list[str]) -> None:
    """Write lines to stderr, and clear the list."""
    for line in lines:
        click.echo(line, err=True)
    lines.clear()


def print_notes(completion: Completion, model: str) -> None:
    """Write advice for the next run to stderr, where there is any."""
    suggest_chat(completion, model)
    if completion.finish_reason == CONTEXT_FULL:
        n_ctx = completion.context.n_ctx
        click.echo(f"the context of {n_ctx} tokens is full; give a larger -c", err=True)
    if _needs_chat(completion):
        click.echo("the model ended the text at once; for questions use pyselfspec chat", err=True)


def _needs_chat(completion: Completion) -> bool:
    """Tell whether a chat model ended the text at once, as many do outside of a chat."""
    ended_at_once = completion.finish_reason == "eog" and not completion.text
    return ended_at_once and vocabulary.chat_template(completion.context.model) is not None


def _prepare_comparison(request: Request, completion: Completion) -> None:
    """Make a run without drafts comparable. Raises UsageError if the completion has no drafts."""
    if completion.draft is None:
        raise click.UsageError(
            "--compare needs drafts, and this run makes none; leave out --compare"
        )
    _warm_up(request, completion)
    completion.context.sequence().drop()  # both runs evaluate the prompt


def _warm_up(request: Request, completion: Completion) -> None:
    """Generate some tokens with and without drafts, so that neither run pays for start-up costs.

    They follow another prompt, so that no drafter has seen the text before it is timed.
    """
    config = request.config
    if config.options:  # which may name a file of texts
        config = config.without_session_memory()
    other = replace(
        request,
        prompt=tuple(reversed(completion.prompt)),
        n_predict=min(request.n_predict, N_WARM_UP),
        config=config,
        stop=(),
    )
    for each in (other, other.plain):
        for _piece in each.completion(completion.context):
            pass
