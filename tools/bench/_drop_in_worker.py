"""Answers with one kind of Llama: a line of JSON in, ``{"prompt", "n_tokens"}``, a line out.

Run by ``drop_in`` as a program: _drop_in_worker.py MODEL THREADS WAY. Without "pyselfspec" for a
way, llama_cpp.Llama is used, with whatever library LLAMA_CPP_LIB_PATH names.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

N_CTX = 2048


def load(model: str, threads: int, way: str) -> Any:
    if way == "pyselfspec":
        from pyselfspec import Llama
    else:
        import pyselfspec  # noqa: F401  (its bindings are found where no others are installed)
        from llama_cpp import Llama  # type: ignore[assignment]  # isort: skip
    return Llama(model, n_ctx=N_CTX, n_threads=threads, n_threads_batch=threads, verbose=False)


def answer(llama: Any, prompt: str, n_tokens: int) -> dict[str, Any]:
    """Greedily, with the model's chat template if it has one. Times with the prompt."""
    options = {"temperature": 0.0, "max_tokens": n_tokens}
    wall, cpu = time.perf_counter(), time.process_time()
    if "tokenizer.chat_template" in llama.metadata:
        found = llama.create_chat_completion([{"role": "user", "content": prompt}], **options)
        text = found["choices"][0]["message"]["content"]
    else:
        found = llama.create_completion(prompt, **options)
        text = found["choices"][0]["text"]
    return {
        "text": text,
        "n_tokens": found["usage"]["completion_tokens"],
        "wall_ms": round(1000 * (time.perf_counter() - wall), 1),
        "cpu_ms": round(1000 * (time.process_time() - cpu), 1),
    }


if __name__ == "__main__":
    model, threads, way = sys.argv[1:]
    llama = load(model, int(threads), way)
    for line in sys.stdin:
        print(json.dumps(answer(llama, **json.loads(line))), flush=True)
