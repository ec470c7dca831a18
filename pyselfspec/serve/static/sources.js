// Where tokens are from: what people call it, and what it means. Colours are in style.css.

export const OWN = "full"; // the full model's own token of each pass

const KNOWN = {
  [OWN]: ["model", "The full model wrote these itself"],
  "ngram": ["n-gram", "Copied: what followed the same words before"],
  "layer-skip": ["layer skip", "Guessed by a part of the model’s layers"],
  "head": ["head", "Guessed by a draft head"],
  "jacobi": ["Jacobi", "What the model had said behind a wrong guess"],
  "lookahead": ["lookahead", "Found in a window that the model writes ahead of the text"],
  "partial-kv": ["partial K/V", "Guessed by the model while it looked at a part of the text"],
  "model": ["second model", "Guessed by a smaller model"],
  "universal": ["other model", "Guessed by a model that has other tokens"],
};

export const label = (source) => KNOWN[source]?.[0] ?? source;
export const meaning = (source) => KNOWN[source]?.[1] ?? `Guessed by ${source}`;

// Sources of an answer's tokens and how many are from each, the model first, then by count. The
// server counts best: a token without text, such as the one that ends the answer, has no mark.
export function counts({marks, statistics}) {
  const found = new Map([[OWN, 0]]);
  if (statistics?.sources) {
    found.set(OWN, statistics.n_generated - statistics.n_accepted);
    for (const [source, {n_accepted_at}] of Object.entries(statistics.sources)) {
      found.set(source, n_accepted_at.reduce((sum, n) => sum + n, 0));
    }
  } else {
    for (const [, source] of marks) found.set(source, (found.get(source) ?? 0) + 1);
  }
  return [...found].sort(([a, n], [b, m]) => (b === OWN) - (a === OWN) || m - n);
}
