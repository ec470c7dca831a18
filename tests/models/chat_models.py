"""Tiny models with a chat template and special tokens of its style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType

from tools.models import tiny_gguf, tiny_vocab

CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")

# A header with the role, contents trimmed, a BOS token of the template's own.
HEADERS = """\
{{ bos_token }}
{%- for message in messages %}
    {{- '<|head|>' + message.role + '<|/head|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""
HEADERS_TOKENS = ("<|head|>", "<|/head|>", "<|eot|>")

# No system role, turns in turn, the assistant has another name.
TURNS = """\
{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
<turn>{{ role }}
{{ message.content | trim }}</turn>
{% endfor %}
{% if add_generation_prompt %}
<turn>model
{% endif %}
"""
TURNS_TOKENS = ("<turn>", "</turn>")

# The system's text in the last question, answers end with EOS, loops with break.
INSTRUCTIONS = """\
{{- bos_token }}
{%- set system = namespace(text='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set system.text = message.content + '\\n\\n' %}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' + (system.text if loop.last else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
INSTRUCTIONS_TOKENS = ("[INST]", "[/INST]")

# Tools in the system's turn, calls and results in turns of their own.
TOOLS = """\
{%- if tools %}
<|im_start|>system
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
<|im_end|>
{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
TOOLS_USER_DEFINED = ("<tool_call>", "</tool_call>")

STYLES = {
    "chatml": (CHATML, CHATML_TOKENS),
    "headers": (HEADERS, HEADERS_TOKENS),
    "turns": (TURNS, TURNS_TOKENS),
    "instructions": (INSTRUCTIONS, INSTRUCTIONS_TOKENS),
    "tools": (TOOLS, CHATML_TOKENS),
}
LAST_IS_EOS = {"chatml", "headers", "turns", "tools"}


def write(
    path: Path,
    style: str = "chatml",
    *,
    template: str | None = None,
    tool_use: str | None = None,
    user_defined: Sequence[str] = TOOLS_USER_DEFINED,
    space: bool = True,
    bos: bool = True,
    name: str | None = None,
) -> Path:
    """A tiny model whose last tokens are the special ones of a style and user-defined ones.

    space: put before every text. bos: likewise the BOS token. name: of the model, which decides
    whether llama.cpp's special tokens swallow white space.
    """
    source, control = STYLES[style]
    special = [*control, *user_defined]

    def add_vocab(writer: GGUFWriter, _vocab: str) -> None:
        tiny_vocab.add_spm_vocab(writer)
        [fields] = writer.kv_data
        first = tiny_vocab.N_VOCAB_MIN - len(special)
        fields["tokenizer.ggml.tokens"].value[first:] = special
        types = [TokenType.CONTROL] * len(control) + [TokenType.USER_DEFINED] * len(user_defined)
        fields["tokenizer.ggml.token_type"].value[first:] = [int(kind) for kind in types]
        if style in LAST_IS_EOS:
            fields["tokenizer.ggml.eos_token_id"].value = first + len(control) - 1
        fields["tokenizer.ggml.add_bos_token"].value = bos
        if name is not None:
            fields["general.name"].value = name
        writer.add_add_space_prefix(space)
        writer.add_chat_template(source if template is None else template)
        if tool_use is not None:
            writer.add_string("tokenizer.chat_template.tool_use", tool_use)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_gguf, "add_vocab", add_vocab)
        return tiny_gguf.write(path)
