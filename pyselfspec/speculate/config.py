"""How to draft, as one value: drafters, their options, mask, controller and verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypedDict, Unpack

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from . import controllers, drafters
from .controllers import Controller
from .draft_names import Names, split
from .drafters import Drafter
from .residual import MATCH, RESIDUAL, VERIFY

AUTO = "auto"  # the drafters that suit the context, plain decoding where none does
OFF = "off"  # how users write plain decoding, which is None here
COPIES = "ngram"  # the one of AUTO's drafters that remembers texts

DraftChoice = Names | Drafter | None


class DraftFields(TypedDict, total=False):
    """The fields of DraftConfig beside ``draft``, as keyword arguments."""

    options: Any
    mask: LayerMask | None
    profile: bool
    controller: Controller | str
    verify: str


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How a text is drafted and verified.

    draft: name of a drafter, see ``drafters.names()``, with its file as in "model:small.gguf" where
        it takes one; several as in "ngram+layer-skip" or ["ngram", "model:small.gguf"]; "auto":
        those that suit the context; a Drafter, which stays the caller's to close; None: plain
        decoding.
    options: ``Options`` of a drafter that is given by name, or a tuple of these for several;
        default: those that the drafter suggests.
    mask: the sublayers that drafts skip; default: the mask of the model's profile, else the
        drafter's choice.
    profile: False ignores the profile. Options, mask and profile go with names only.
    controller: decides how long drafts are; an object, or a name of ``controllers.names()``.
    verify: "match": the sampler draws each token as in plain decoding, so a seed gives one text
        however it is drafted. "residual": drafters that compute a distribution (masks, heads,
        second models) draw their tokens at the temperature of the text, and more of them are
        accepted; a seed gives another text of the same distribution, see residual.py. Copies, and
        text that an assistant writes, are not drawn.

    Raises ArgumentError for fields that do not go together and for unknown controllers.
    """

    draft: DraftChoice = AUTO
    options: Any = ()
    mask: LayerMask | None = None
    profile: bool = True
    controller: Controller | str = controllers.DEFAULT
    verify: str = MATCH

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _as_tuple(self.options))
        if isinstance(self.draft, Sequence) and not isinstance(self.draft, str):
            object.__setattr__(self, "draft", tuple(self.draft))
        if isinstance(self.controller, str):
            controllers.load(self.controller)
        for each in self.options:
            if not (is_dataclass(each) and each.__hash__):
                raise ArgumentError(f"options of a drafter are a frozen dataclass, got {each!r}")
        own = {getattr(each, "mask", None) for each in self.options} - {None, self.mask}
        if self.mask is not None and own:
            raise ArgumentError("the options have a mask of their own; give only one mask")
        if self.verify not in VERIFY:
            raise ArgumentError(f"verify is one of {', '.join(VERIFY)}, got {self.verify!r}")
        self._check_draft()

    def _check_draft(self) -> None:
        if not self.draft and self.draft is not None:
            raise ArgumentError(
                "a list of drafters names at least one; give draft=None for plain decoding"
            )
        has_parts = bool(self.options) or self.mask is not None
        if self.draft is None and has_parts:
            raise ArgumentError("plain decoding drafts nothing, so it takes no mask and no options")
        if self.draft is None and self.verify == RESIDUAL:
            raise ArgumentError("plain decoding drafts nothing, so there is nothing to verify")
        if self.drafter is not None and has_parts:
            raise ArgumentError(
                "a drafter object takes no mask and no options; give them when you make it"
            )

    @classmethod
    def create(
        cls, draft: DraftChoice | DraftConfig = AUTO, **others: Unpack[DraftFields]
    ) -> DraftConfig:
        """Return a config from what users may give as ``draft``, with other fields set."""
        if isinstance(draft, DraftConfig):
            return replace(draft, **others) if others else draft
        return cls(draft, **others)

    @classmethod
    def plain(cls) -> DraftConfig:
        """Return the config of plain decoding."""
        return cls(draft=None)

    @property
    def drafter(self) -> Drafter | None:
        """The drafter that was given as an object; None where names are given, or nothing."""
        named = self.draft is None or isinstance(self.draft, Sequence)
        return None if named else self.draft  # type: ignore[return-value]

    @property
    def names(self) -> Names | None:
        """The drafters that were given by name; None for an object and for plain decoding."""
        return self.draft if isinstance(self.draft, str | tuple) else None

    def with_draft(self, draft: Names | None) -> DraftConfig:
        """Return the config with other drafters, without the options of those it had; for plain
        decoding also without mask and residual verification."""
        if draft == self.draft:
            return self
        if draft is None:
            return replace(self, draft=None, options=(), mask=None, verify=MATCH)
        return replace(self, draft=draft, options=())

    def with_mask(self, mask: LayerMask) -> DraftConfig:
        """Return the config with another mask, also where the options had one of their own."""
        options = (replace(o, mask=None) if hasattr(o, "mask") else o for o in self.options)
        return replace(self, mask=mask, options=tuple(options))

    def without_session_memory(self) -> DraftConfig:
        """Return the config with drafters that copy nothing from earlier texts of the session and
        keep nothing of theirs for later ones."""
        if self.names is None:
            return self
        found = {type(each): each for each in self.options}
        for named in split(COPIES if self.draft == AUTO else self.names, drafters.all_names()):
            kind = drafters.load(named.name).Options
            memory = {"session": False, "file": None}
            if memory.keys() <= {field.name for field in fields(kind)}:
                options = found.get(kind) or drafters.options_of(named)
                found[kind] = replace(options, **memory)
        return replace(self, options=tuple(found.values()))


def _as_tuple(options: Any) -> tuple[Any, ...]:
    """Return options as a tuple: none, those of one drafter, or a tuple as it is."""
    if options is None:
        return ()
    return options if isinstance(options, tuple) else (options,)
