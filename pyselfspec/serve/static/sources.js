// Sources of tokens. The server gives their labels; colours are in style.css.

export const OWN = "full"; // the full model

let sources = new Map(); // by name: {label, meaning, works}

// drafters: the server's list of sources.
export function setSources(drafters) {
  sources = new Map(drafters.map((each) => [each.name, each]));
}

// Names of the drafters that work on this server.
export const usable = () => [...sources.values()].filter(({works}) => works).map(({name}) => name);
export const label = (source) => sources.get(source)?.label ?? (source === OWN ? "model" : source);
export const meaning = (source) => sources.get(source)?.meaning ?? `Drafted by ${source}`;

// Numbers of an answer's tokens by source, the model first, then by count. The
// server's counts are exact: a token without text, such as the end token, has no mark.
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
