"""The service that all endpoints use: the engine, its settings and metrics, and its description."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from ..answers.form import AnswerForm
from ..answers.markers import visible_tokens
from ..gguf.chat_template import tells_speakers_apart
from ..masks.layer_mask import LayerMask
from ..runtime import vocabulary
from ..runtime.model import Model
from ..runtime.projector import Projector
from ..speculate.config import DraftConfig
from ..speculate.drafters import ngram
from ..templates.rendering import Worker
from ..templates.template import ChatTemplate
from ..util import build
from . import model_card
from .drafter_labels import corpus_of, describe_sources
from .engine.engine import Engine
from .engine.jobs import Job
from .metrics import Metrics
from .model_card import FileCard
from .protocol.errors import ApiError, unsupported
from .protocol.events import JobEvents
from .protocol.request_options import RequestReader, draft_label
from .protocol.response_fields import mask_fields
from .protocol.schemas import TextRequest
from .settings import Settings
from .store.response_store import ResponseStore
from .store.slot_files import SlotFiles


class Service:
    """A model that is being served.

    template: None for a model that cannot chat. drafting: how to draft by default. mask: what such
    drafts skip. drafter_names: of the drafters that work here. projector: reads images; None: the
    server takes none.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        template: ChatTemplate | None,
        drafting: DraftConfig,
        mask: LayerMask | None,
        drafter_names: tuple[str, ...],
        projector: Projector | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.template = template
        self.projector = projector
        self.metrics = Metrics(engine)
        self.stored = ResponseStore()
        self.slot_files: SlotFiles | None = None  # None: clients save no slots
        self.renders: Worker | None = None  # chat templates
        self._shown: dict[AnswerForm, tuple[tuple[int, str], ...]] = {}  # one or two forms
        self.created_at = int(time.time())
        self._mask = mask
        n_train = self.model.n_ctx_train
        self.requests = RequestReader(
            self.model,
            n_ctx=min(engine.n_cells, n_train) if n_train > 0 else engine.n_cells,
            n_share=engine.n_cells // engine.n_slots,
            sampling=settings.sampling,
            default_drafting=drafting,
            adapters=self.model.default_adapters,
            drafter_names=drafter_names,
        )

    @property
    def model(self) -> Model:
        return self.engine.context.model

    def shown_markers(self, form: AnswerForm) -> tuple[tuple[int, str], ...]:
        """Return the control tokens that answers of a form show, with their texts."""
        if form not in self._shown:
            self._shown[form] = visible_tokens(self.model, form)
        return self._shown[form]

    async def open_corpora(self, jobs: Sequence[Job]) -> None:
        """Read the folders that jobs copy from in another thread, while the engine goes on."""
        for folder in filter(None, {corpus_of(job.drafting) for job in jobs}):
            await asyncio.to_thread(ngram.open_corpus, self.engine.context, folder)

    def submit(self, jobs: Sequence[Job], owner: str) -> JobEvents:
        """Queue jobs. owner: whose they are, see protocol.auth.owner_of. Raises BusyError or
        ShutdownError."""
        return JobEvents(self.engine, jobs, self.settings.timeout_s, owner)

    def end(self, grace_s: float) -> None:
        """Accept no more requests, and finish those whose answers have been queued."""
        self.engine.end(grace_s)
        if self.renders is not None:
            self.renders.end()

    def refusal(self) -> ApiError:
        """Return the error of a request for embeddings or scores."""
        return unsupported(
            "model",
            f"{self.settings.name} generates text; start a server with a model made for embeddings "
            "or scores",
        )

    def file_card(self) -> FileCard:
        """Return the description of the model's file."""
        return FileCard.of(self.model.file, None)

    def props(self) -> dict[str, Any]:
        """Return a description of model and server, for GET /props."""
        requests = self.requests
        bos, eos = vocabulary.bos_and_eos(self.model)
        return {
            "model": self.settings.name,
            **model_card.facts(self.model),
            # names that clients of llama-server read
            "model_alias": self.settings.name,
            "model_path": self.model.path.name,  # without its folder
            "build_info": build.BUILD_ID,
            "bos_token": bos,
            "eos_token": eos,
            "default_generation_settings": {
                "n_ctx": requests.n_ctx,
                "params": {name: getattr(requests.sampling, name) for name in TextRequest.SAMPLING},
            },
            "total_slots": self.engine.n_slots,
            "description": f"{self.model.file.architecture}, {self.model.n_layer} blocks",
            "n_ctx": requests.n_ctx,
            "slots": self.engine.n_slots,
            "modalities": {"vision": self.projector is not None, "audio": False},
            "n_share": requests.n_share,
            "draft": draft_label(requests.default_drafting.names),
            "sources": list(requests.drafter_names),
            "drafters": describe_sources(requests.drafter_names),
            "mask": mask_fields(self._mask),
            "chat_template": self.template is not None
            and tells_speakers_apart(self.template.source),
        }
