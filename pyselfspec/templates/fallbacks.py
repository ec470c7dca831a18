"""Chat templates for models without one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """A template, and the strings that end an answer of models without an end token."""

    source: str
    stop: tuple[str, ...] = ()


_CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# For models without chat training: a conversation as in a transcript.
_PLAIN = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{ message.content + '\\n\\n' }}
{%- else %}
{{ ('Assistant: ' if message.role == 'assistant' else 'User: ') + (message.content or '') + '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{ 'Assistant:' }}
{%- endif %}
"""

FALLBACKS: Mapping[str, Fallback] = {
    "chatml": Fallback(_CHATML),
    "plain": Fallback(_PLAIN, stop=("\nUser:",)),
}
