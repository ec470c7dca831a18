"""pyselfspec generate: continue a prompt, then print one line about speed and drafts."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import click
import cloup

from ..gguf.chat_template import tells_speakers_apart
from ..runtime import vocabulary
from ..runtime.context import Context
from ..runtime.ffi import load
from ..runtime.model import Model
from ..runtime.pictures import Picture, is_text
from ..runtime.sampling import SamplingParams
from ..speculate.completion import N_PREDICT, Completion
from ..speculate.config import DraftConfig
from ..speculate.output.record import CONTEXT_FULL, INTERRUPTED
from ..speculate.residual import MATCH, VERIFY
from ._drafting import DraftOptions
from ._generation_report import Explainer, closing_line, full_context, report
from ._help import ManyOptions, Rare
from ._machine import MachineOptions
from ._model import model_argument
from ._options import (
    MAX_TEXT,
    STDIN,
    common_options,
    n_predict_option,
    parse_tokens,
    prompt_file_option,
    prompt_option,
    read_text,
    require_one_reader_of_stdin,
    text_argument,
)
from ._pictures import PictureOptions, read_picture
from ._sampling import SamplingOptions
from ._types import of_value, rare, takes

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
    pictures: tuple[Picture, ...] = ()

    def completion(self, context: Context) -> Completion:
        return Completion(
            context,
            self.prompt,
            self.config,
            n_predict=self.n_predict,
            sampling=self.sampling,
            stop=self.stop,
            pictures=self.pictures,
        )

    @property
    def plain(self) -> Request:
        """Return this request without drafts."""
        return replace(self, config=DraftConfig.plain())


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The prompt, and where the text ends."""

    title: ClassVar[str] = "Text"
    prompt: str | None = prompt_option("Text to continue")
    prompt_file: str | None = prompt_file_option("File with the text, - for stdin.")
    prompt_tokens: tuple[int, ...] | None = rare(
        "--prompt-tokens",
        metavar="IDS",
        callback=of_value(parse_tokens),
        help="Prompt as token ids, like 1,5,9; the output is token ids too.",
    )
    n_predict: int = n_predict_option(N_PREDICT)
    stop: tuple[str, ...] = rare(
        "--stop", multiple=True, help="End the text before this string; repeatable."
    )

    def read_prompt(self, text: str | None, *others: str | None) -> Prompt:
        """Return the prompt of the command line, of a file or of stdin.

        text: the argument. others: files of other options, of which stdin is one at most. Raises
        UsageError without or with several prompts.
        """
        prompts = (text, self.prompt, self.prompt_tokens, self.prompt_file)
        n_given = sum(each is not None for each in prompts)
        if n_given > 1:
            raise click.UsageError("give only one prompt: after MODEL, -p, -f or --prompt-tokens")
        if not n_given and sys.stdin is not None and sys.stdin.isatty():
            raise click.UsageError(
                "give a prompt: after MODEL, -p TEXT, -f FILE, --prompt-tokens IDS, or through a "
                "pipe"
            )
        file = self.prompt_file if n_given else STDIN
        require_one_reader_of_stdin(file, *others)
        if file is not None:
            return read_text(file, MAX_TEXT)
        return next(each for each in prompts if each is not None)


verify_option = cloup.option_group(
    "Verification",
    cloup.option(
        "--verify",
        cls=Rare,
        type=click.Choice(VERIFY),
        default=MATCH,
        help="match: generate the text that plain decoding generates with the same --seed. "
        "residual: sample draft tokens too (all but copies), so that more are accepted; the text "
        "is another sample of the same distribution.",
    ),
)


@cloup.command(name="generate", cls=ManyOptions)
@model_argument
@text_argument("Text to continue.")
@takes(options=TextOptions, pictures=PictureOptions)
@cloup.option_group(
    "Comparison and explanation",
    cloup.option(
        "--compare",
        is_flag=True,
        help="Also run plain decoding, and print both speeds and whether the texts are equal.",
    ),
    cloup.option(
        "--explain",
        cls=Rare,
        is_flag=True,
        help="Explain on stderr where tokens come from, and when and why drafting starts or stops.",
    ),
)
@takes(drafts=DraftOptions)
@verify_option
@takes(sampling=SamplingOptions, machine=MachineOptions)
@common_options
def command(
    model: str,
    text: str | None,
    options: TextOptions,
    pictures: PictureOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    machine: MachineOptions,
    verify: str,
    compare: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Continue a prompt as plain decoding does, but faster.

    Draft tokens are copied from earlier text, or come from part of the model or from a smaller
    model (see --draft); the model verifies each of them. Prints the continuation without the
    prompt.

    \b
    pyselfspec generate demo "Once upon a time"
    pyselfspec generate model.gguf -f prompt.txt --temp 0 --compare
    pyselfspec generate model.gguf -f prompt.txt --draft ngram+model:small.gguf
    """
    pictures.check()
    drafts.check(verify)
    prompt = options.read_prompt(text, drafts.mask_file, sampling.grammar_file)
    if pictures.images and not isinstance(prompt, str):
        raise click.UsageError("--image needs a text; leave out --prompt-tokens")
    params = sampling.params().with_seed()
    with machine.open(model) as (loaded, context):
        config = drafts.config(loaded.n_layer, verify)
        tokens, shown = _with_pictures(prompt, pictures, loaded, machine.threads)
        request = Request(tokens, options.n_predict, config, params, options.stop, shown)
        completion = request.completion(context)
        if compare:
            if completion.draft is None:
                raise click.UsageError(
                    "--compare needs drafts, and this run makes none; leave out --compare"
                )
            _warm_up(request, completion)
            context.sequence().drop()  # both runs evaluate the prompt
        as_text = isinstance(prompt, str)
        finished = generate(completion, show=not as_json, as_text=as_text, explain=explain)
        plain = None
        if compare and finished:
            context.sequence().drop()
            plain = request.plain.completion(context)
            finished = generate(plain)
        if as_json:
            click.echo(json.dumps(report(completion, model, plain if finished else None)))
        else:
            print_notes(completion, model)
            verbose = explain or load.is_verbose()
            line = closing_line(completion, plain if finished else None, verbose=verbose)
            click.echo(line, err=True)
        completion.remember()
    if not finished:
        raise KeyboardInterrupt  # for the exit status


def _with_pictures(
    prompt: Prompt, pictures: PictureOptions, model: Model, n_threads: int | None
) -> tuple[Prompt, tuple[Picture, ...]]:
    """Return the prompt as token ids, and its pictures; without pictures, the prompt alone."""
    projector = pictures.projector(model, n_threads) if pictures.images else None
    if projector is None:
        return prompt, ()
    assert isinstance(prompt, str)
    files = [read_picture(projector, path) for path in pictures.images]
    tokens, shown = projector.prompt(prompt, files)
    return tuple(tokens), tuple(shown)


def generate(
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
                if held and not on_terminal:
                    click.echo("\n".join(held), err=True)
                    held = []
    except KeyboardInterrupt:
        completion.finish_reason = INTERRUPTED
    if show:
        click.echo("" if as_text else ",".join(map(str, completion.tokens)))
    if explain and (lines := held + explainer.last_lines()):
        click.echo("\n".join(lines), err=True)
    return completion.finish_reason != INTERRUPTED


def print_notes(completion: Completion, model: str) -> None:
    """Write advice for the next run to stderr, where there is any.

    model: name by which the model was opened.
    """
    template = vocabulary.chat_template(completion.context.model)
    watched = sys.stderr is not None and sys.stderr.isatty()
    if watched and completion.text and template is not None and tells_speakers_apart(template):
        if not _is_chat(completion, template):
            name = shlex.quote(model)
            hint = f'this is a chat model; ask it with: pyselfspec chat {name} "your question"'
            click.echo(hint, err=True)
    if completion.finish_reason == CONTEXT_FULL:
        click.echo(full_context(completion.context), err=True)
    if completion.finish_reason == "eog" and not completion.text and template is not None:
        click.echo("the model ended the text at once; for questions use pyselfspec chat", err=True)


def _is_chat(completion: Completion, template: str) -> bool:
    """Tell whether the prompt has control tokens of the template."""
    model, prompt = completion.context.model, list(completion.prompt)
    prompt = list(filter(is_text, prompt[1:] if prompt[:1] == [model.start_token] else prompt))
    text = model.detokenize(prompt)
    return any(
        marker.text in template and marker.text in text
        for marker in vocabulary.markers(model)
        if marker.is_control
    )


def _warm_up(request: Request, completion: Completion) -> None:
    """Generate some tokens with and without drafts, so that neither run pays for start-up costs.

    They follow another prompt, so that no drafter has seen the text before it is timed.
    """
    config = request.config
    if config.options:  # which may name a file of texts
        config = config.without_session_memory()
    other = replace(
        request,
        prompt=tuple(filter(is_text, reversed(completion.prompt))),
        n_predict=min(request.n_predict, N_WARM_UP),
        config=config,
        stop=(),
        pictures=(),
    )
    for each in (other, other.plain):
        for _piece in each.completion(completion.context):
            pass
