// Syntax colours of code: comments, strings, numbers and keywords of the languages that answers are
// mostly written in. Other languages stay plain.

const N_MOST = 50000; // characters; longer code stays plain

const COMMENTS = {
  hash: "#[^\\n]*",
  slash: "//[^\\n]*|/\\*[^]*?(?:\\*/|$)",
  dash: "--[^\\n]*|/\\*[^]*?(?:\\*/|$)",
  tag: "<!--[^]*?(?:-->|$)",
  none: "(?!)",
};
const DOUBLE = '"(?:\\\\.|[^"\\\\\\n])*"?';
const SINGLE = "(?<!\\w)'(?:\\\\.|[^'\\\\\\n])*'?";
const STRINGS = {
  both: `${DOUBLE}|${SINGLE}`,
  python: `\\b[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$))|"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${DOUBLE}|${SINGLE}`,
  script: `\`(?:\\\\[^]|[^\`\\\\])*\`?|${DOUBLE}|${SINGLE}`,
  rust: `${DOUBLE}|'(?:\\\\.|[^'\\\\\\n])'`,
};
const NUMBER = "\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b";

const C_LIKE = "break case catch class const continue default delete do else enum explicit extern false final finally for friend goto if import inline interface namespace new null nullptr operator override package private protected public return sizeof static struct super switch template this throw throws true try typedef typename union using var virtual void volatile while bool boolean byte char double float int long short signed string unsigned auto async await";
const LANGUAGES = {
  python: ["hash", "python", "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield"],
  javascript: ["slash", "script", "async await break case catch class const continue debugger default delete do else export extends false finally for from function if implements import in instanceof interface let new null of private public readonly return static super switch this throw true try type typeof undefined var void while yield"],
  c: ["slash", "both", C_LIKE],
  rust: ["slash", "rust", "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i32 i64 str String u8 u32 u64 usize"],
  go: ["slash", "script", "break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var bool byte error float64 int int64 rune string"],
  shell: ["hash", "both", "case cd do done echo elif else esac exit export fi for function if in local return set sudo then until while"],
  sql: ["dash", "both", "add all alter and as asc by case count create delete desc distinct drop else end exists foreign from group having in index inner insert into is join key left like limit not null on or order outer primary references right select set table then union unique update values when where", "i"],
  ruby: ["hash", "both", "and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue return self super then true unless until when while yield"],
  yaml: ["hash", "both", "true false null yes no"],
  json: ["none", "both", "true false null"],
  css: ["slash", "both", "important media import from to"],
  html: ["tag", "both", ""],
};
const ALIASES = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript",
  cpp: "c", "c++": "c", "c#": "c", cs: "c", csharp: "c", h: "c", java: "c", kotlin: "c", php: "c", swift: "c", scala: "c", dart: "c",
  rs: "rust", golang: "go", bash: "shell", sh: "shell", zsh: "shell", console: "shell", dockerfile: "shell", makefile: "shell",
  rb: "ruby", yml: "yaml", toml: "yaml", ini: "yaml", xml: "html", svg: "html", r: "python", julia: "python", scss: "css",
};
const rules = new Map(); // by language, made when first needed

function compile(comments, strings, words, flags = "") {
  const keyword = words ? `\\b(?:${words.replaceAll(" ", "|")})\\b` : "</?[\\w-]+|/?>";
  const parts = {comment: COMMENTS[comments], string: STRINGS[strings], number: NUMBER, keyword};
  const groups = Object.entries(parts).map(([kind, part]) => `(?<${kind}>${part})`);
  return new RegExp(groups.join("|"), `g${flags}`);
}

// [{start, end, kind}] in order, apart from one another; kind: as in compile().
export function highlighted(code, language) {
  const lower = language.toLowerCase();
  const name = ALIASES[lower] ?? lower;
  if (code.length > N_MOST || !Object.hasOwn(LANGUAGES, name)) return [];
  if (!rules.has(name)) rules.set(name, compile(...LANGUAGES[name]));
  return [...code.matchAll(rules.get(name))]
    .filter(([text]) => text)
    .map(({index, 0: text, groups}) => {
      const [kind] = Object.entries(groups).find(([, found]) => found !== undefined);
      return {start: index, end: index + text.length, kind};
    });
}
