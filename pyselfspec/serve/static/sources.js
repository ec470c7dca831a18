// Where tokens are from. What they are called is said by the server; colours are in style.css.

export const OWN = "full"; // the full model's own token of each pass

let known = new Map(); // by name: {label, meaning, works}

// The server's list of everything that tokens may be from.
export function setSources(drafters) {
  known = new Map(drafters.map((each) => [each.name, each]));
}

// Names of the drafters that can draft on this server.
export const usable = () => [...known.values()].filter(({works}) => works).map(({name}) => name);
export const label = (source) => known.get(source)?.label ?? (source === OWN ? "model" : source);
export const meaning = (source) => known.get(source)?.meaning ?? `Drafted by ${source}`;

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
