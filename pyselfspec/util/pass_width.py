"""Widths of passes: one constant, and the widths that follow from it. Pure."""

MAX_PASS_WIDTH = 32  # SELFSPEC_EXACT_WIDTH of selfspec.h: up to it rows have bit-identical logits
N_WIDTH = MAX_PASS_WIDTH // 2  # widest pass in tables of costs; longer drafts hardly ever pay
MAX_DRAFT = N_WIDTH - 1  # a verification pass has one row more than the draft
