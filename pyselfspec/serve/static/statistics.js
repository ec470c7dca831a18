// The server's statistics of an answer, and sums over the parts of a continued one.

const SUMS = ["n_generated", "n_steps", "n_drafted", "n_accepted", "prefill_us", "draft_us", "verify_us", "total_us"];

// Sums of two parts of an answer; null if the statistics of one are missing.
export function merged(one, other) {
  if (!one || !other) return null;
  const sums = Object.fromEntries(SUMS.map((name) => [name, (one[name] ?? 0) + (other[name] ?? 0)]));
  const us = sums.total_us - sums.prefill_us;
  return {
    ...other,
    ...sums,
    n_drafted_at: added(one.n_drafted_at, other.n_drafted_at),
    n_accepted_at: added(one.n_accepted_at, other.n_accepted_at),
    sources: mergedSources(one.sources ?? {}, other.sources ?? {}),
    tokens_per_step: sums.n_steps ? sums.n_generated / sums.n_steps : null,
    tokens_per_second: us > 0 ? (sums.n_generated * 1e6) / us : null,
    estimated_speedup: meanSpeedup(one, other),
  };
}

const added = (one = [], other = []) =>
  Array.from({length: Math.max(one.length, other.length)}, (_, i) => (one[i] ?? 0) + (other[i] ?? 0));

function mergedSources(one, other) {
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return Object.fromEntries([...names].map((name) => [name, {
    n_drafted_at: added(one[name]?.n_drafted_at, other[name]?.n_drafted_at),
    n_accepted_at: added(one[name]?.n_accepted_at, other[name]?.n_accepted_at),
  }]));
}

// Mean of the estimates weighted by the time of passes; null if one is missing.
function meanSpeedup(one, other) {
  const [a, b] = [one, other].map(({draft_us, verify_us}) => draft_us + verify_us);
  if (!one.estimated_speedup || !other.estimated_speedup || !(a + b)) return null;
  return (one.estimated_speedup * a + other.estimated_speedup * b) / (a + b);
}
