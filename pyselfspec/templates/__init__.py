"""Chat templates: messages in, tokens out."""
