"""Every error that a user can meet. The command line prints the message as one line and exits with
status 1."""


class SelfSpecError(Exception):
    """Base of all errors of this package; the message says what was given, what is allowed, what to
    do."""


class ModelFileError(SelfSpecError):
    """The model file is missing, broken, or not something the pinned llama.cpp can run."""


class PullError(SelfSpecError):
    """A model cannot be fetched, or what came is not that model."""


class MaskError(SelfSpecError, ValueError):
    """A layer mask that contradicts itself or does not fit the model."""


class UnsupportedError(SelfSpecError):
    """This architecture, block or memory cannot do what was asked."""


class ContextFullError(SelfSpecError):
    """The K/V cache has no room for the batch."""


class DecodeError(SelfSpecError, RuntimeError):
    """llama.cpp could not compute a batch."""


class ArgumentError(SelfSpecError, ValueError):
    """A value outside its range."""


class LibraryError(SelfSpecError, ImportError):
    """The native library is missing, foreign, or does not belong to this version of the package."""
