// Formulas in LaTeX as MathML: letters, numbers, scripts, fractions, roots, brackets, accents,
// functions, matrices and aligned lines.

import {math as m} from "./dom.js";

const DEEPEST = 60; // levels of groups and of what commands apply to

// Commands and their characters, in turn.
function table(text) {
  const parts = text.trim().split(/\s+/);
  return new Map(parts.flatMap((name, i) => (i % 2 ? [] : [[name, parts[i + 1]]])));
}

const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ
  vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ
  chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω ell ℓ
  hbar ℏ Re ℜ Im ℑ infty ∞ partial ∂ nabla ∇ emptyset ∅ varnothing ∅ ldots … dots … cdots ⋯ vdots ⋮
  ddots ⋱ prime ′ % % $ $ # # & & _ _`);
const OPERATORS = table(`times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ otimes ⊗
  leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ ll ≪ gg ≫ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ in ∈ notin ∉
  ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ vee ∨ neg ¬
  lnot ¬ forall ∀ exists ∃ to → rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐
  Leftrightarrow ⇔ implies ⇒ iff ⇔ mapsto ↦ uparrow ↑ downarrow ↓ perp ⊥ parallel ∥ mid ∣ vert | Vert ‖
  | ‖ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrace { rbrace } { { } } colon : backslash \\
  therefore ∴ because ∵ models ⊨ vdash ⊢ angle ∠ triangle △`);
const INTEGRALS = table("int ∫ iint ∬ iiint ∭ oint ∮");
const LARGE = table("sum ∑ prod ∏ bigcup ⋃ bigcap ⋂ bigoplus ⨁ coprod ∐");
const ACCENTS = table("hat ^ widehat ^ bar ‾ overline ‾ vec → tilde ~ widetilde ~ dot ˙ ddot ¨ underline _");
const SPACES = table("quad 1em qquad 2em , 0.17em : 0.22em ; 0.28em ! 0 thinspace 0.17em");
const UNDER = "lim max min sup inf limsup liminf argmax argmin".split(" "); // a limit
const FUNCTIONS = new Set(UNDER.concat(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh
  log ln lg exp det dim ker gcd deg arg Pr`.split(/\s+/)));
const FRACTIONS = ["frac", "dfrac", "tfrac"];
// The code of A in each alphabet, and letters with older codes.
const ALPHABETS = {
  mathbb: [0x1d538, table("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ")],
  mathcal: [0x1d49c, table("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ")],
  mathfrak: [0x1d504, table("C ℭ H ℌ I ℑ R ℜ Z ℨ")],
};
const TEXTS = new Set(["text", "textrm", "textbf", "textit", "mathrm", "operatorname", "mbox"]); // texts and upright names
const BRACKETS = table("matrix .. pmatrix () bmatrix [] Bmatrix {} vmatrix || cases {. aligned .. align .. array ..");
const TOKEN = /\\(?:[A-Za-z]+|.)|\d+(?:\.\d+)?|\s+|[^]/gu;

// Returns the element of a formula, null for one with anything else. isBlock: whether it has lines
// of its own.
export function formula(text, isBlock) {
  try {
    const parser = new Parser(text.match(TOKEN) ?? []);
    const row = parser.row();
    if (parser.next !== undefined) return null;
    return m("math", isBlock ? {display: "block"} : {}, row);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

class Parser {
  #tokens;
  #at = 0;
  #depth = 0;

  constructor(tokens) {
    this.#tokens = tokens;
  }

  get next() {
    while (/^\s/.test(this.#tokens[this.#at] ?? "")) this.#at += 1;
    return this.#tokens[this.#at];
  }

  #take(expected) {
    const token = this.next;
    if (token === undefined || (expected && token !== expected)) throw new SyntaxError();
    this.#at += 1;
    return token;
  }

  // What follows until one of these tokens, which stays, or the end.
  row(...ends) {
    const found = [];
    while (this.next !== undefined && !ends.includes(this.next)) found.push(this.#scripted());
    return found.length === 1 ? found[0] : m("mrow", {}, ...found);
  }

  #scripted() {
    const isUnder = LARGE.has(this.next.slice(1)) || UNDER.includes(this.next.slice(1));
    const base = "^_'".includes(this.next) ? m("mrow", {}) : this.#atom();
    let [sub, sup] = [null, null];
    for (;;) {
      if (this.next === "_" && !sub) this.#take(), (sub = this.#argument());
      else if (this.next === "^" && !sup) this.#take(), (sup = this.#argument());
      else if (this.next === "'" && !sup) sup = this.#primes();
      else break;
    }
    if (!sub && !sup) return base;
    const [both, below, above] = isUnder ? ["munderover", "munder", "mover"] : ["msubsup", "msub", "msup"];
    if (sub && sup) return m(both, {}, base, sub, sup);
    return sub ? m(below, {}, base, sub) : m(above, {}, base, sup);
  }

  #primes() {
    let n = 0;
    while (this.next === "'") this.#take(), (n += 1);
    return m("mo", {}, "′".repeat(n));
  }

  #atom() {
    if ((this.#depth += 1) > DEEPEST) throw new SyntaxError();
    const found = this.#made(this.#take());
    this.#depth -= 1;
    return found;
  }

  #made(token) {
    if (token === "{") return this.#rest("}");
    if (/^\d/.test(token)) return m("mn", {}, token);
    if (/^\p{L}/u.test(token)) return m("mi", {}, token);
    if (!token.startsWith("\\")) {
      if ("}^_&$#~%\\".includes(token)) throw new SyntaxError();
      return m("mo", "()[]|".includes(token) ? {stretchy: "false"} : {}, token === "-" ? "−" : token);
    }
    return this.#command(token.slice(1));
  }

  #rest(end) {
    const row = this.row(end);
    this.#take(end);
    return row;
  }

  #command(name) {
    if (TEXTS.has(name)) return m("mtext", {}, this.#words());
    if (LETTERS.has(name)) return m("mi", {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return m("mo", {stretchy: "false"}, OPERATORS.get(name));
    if (LARGE.has(name)) return m("mo", {}, LARGE.get(name));
    if (INTEGRALS.has(name)) return m("mo", {}, INTEGRALS.get(name));
    if (FUNCTIONS.has(name)) return m("mi", {}, name);
    if (SPACES.has(name)) return m("mspace", {width: SPACES.get(name)});
    if (name === " ") return m("mspace", {width: "0.3em"});
    if (name === "mathbf" || name === "boldsymbol") return m("mrow", {class: "bold"}, this.#argument());
    if (Object.hasOwn(ALPHABETS, name)) return m("mi", {}, this.#letters(...ALPHABETS[name]));
    if (ACCENTS.has(name)) return this.#accented(name);
    if (FRACTIONS.includes(name)) return this.#fraction({});
    if (name === "binom") return this.#fenced("(", ")", this.#fraction({linethickness: "0"}));
    if (name === "sqrt") return this.#root();
    if (name === "left") return this.#stretched();
    if (name === "begin") return this.#environment();
    throw new SyntaxError();
  }

  #fraction(attributes) {
    return m("mfrac", attributes, this.#argument(), this.#argument());
  }

  #accented(name) {
    const [tag, attribute] = name === "underline" ? ["munder", "accentunder"] : ["mover", "accent"];
    return m(tag, {[attribute]: "true"}, this.#argument(), m("mo", {}, ACCENTS.get(name)));
  }

  #letters(first, older) {
    const isLetter = /^[A-Za-z]$/.test(this.next ?? "");
    const inAlphabet = (letter) => {
      if (older.has(letter)) return older.get(letter);
      const i = letter.charCodeAt(0);
      return String.fromCodePoint(first + (i < 97 ? i - 65 : i - 97 + 26));
    };
    return (isLetter ? this.#take() : this.#words()).replace(/[A-Za-z]/g, inAlphabet);
  }

  // Of a command or a script: what is in braces, or one letter, digit or command.
  #argument() {
    const token = this.next ?? "";
    if (!/^\d./.test(token)) return this.#atom();
    this.#tokens[this.#at] = token.slice(1);
    return m("mn", {}, token[0]);
  }

  #root() {
    if (this.next !== "[") return m("msqrt", {}, this.#argument());
    this.#take();
    const index = this.#rest("]");
    return m("mroot", {}, this.#argument(), index);
  }

  #stretched() {
    const open = this.#fence();
    const row = this.#rest("\\right");
    return this.#fenced(open, this.#fence(), row);
  }

  #fence() {
    const token = this.#take();
    const sign = token.startsWith("\\") ? OPERATORS.get(token.slice(1)) : token;
    if (!sign) throw new SyntaxError();
    return sign;
  }

  // A dot stands for no bracket.
  #fenced(open, close, inner) {
    const sign = (each) => each !== "." && m("mo", {stretchy: "true"}, each);
    return m("mrow", {}, sign(open), inner, sign(close));
  }

  // The text in braces, unchanged.
  #words() {
    this.#take("{");
    const end = this.#tokens.indexOf("}", this.#at);
    const found = this.#tokens.slice(this.#at, end).join("");
    if (end < 0 || /[\\{$]/.test(found)) throw new SyntaxError();
    this.#at = end + 1;
    return found.replaceAll(" ", "\u00a0");
  }

  #environment() {
    const name = this.#words().replace("*", "");
    if (!BRACKETS.has(name)) throw new SyntaxError();
    if (name === "array") this.#words(); // how columns are aligned
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(m("mtd", {}, this.row("&", "\\\\", "\\end")));
      const token = this.#take();
      if (token === "\\end") break;
      if (token === "\\\\") rows.push([]);
    }
    this.#words();
    const [open, close] = BRACKETS.get(name);
    const cells = m("mtable", {class: `rows-${name}`}, ...rows.map((row) => m("mtr", {}, ...row)));
    return this.#fenced(open, close, cells);
  }
}
