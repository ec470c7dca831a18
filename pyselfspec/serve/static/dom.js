// Creates elements; strings stay text and are never read as HTML.

const maker = (namespace) => (tag, attributes = {}, ...children) => {
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(Boolean));
  return element;
};

// h("p", {class: "x", onclick: f}, "text", child): an element with attributes and listeners.
// Attributes and children that are null, false or empty are left out.
export const h = maker("http://www.w3.org/1999/xhtml");
export const svg = maker("http://www.w3.org/2000/svg");
export const math = maker("http://www.w3.org/1998/Math/MathML");

// A button that submits no form.
export const button = (attributes, ...children) =>
  h("button", {type: "button", ...attributes}, ...children);

export function icon(name) {
  return svg("svg", {class: "icon", "aria-hidden": "true"}, svg("use", {href: `#icon-${name}`}));
}

// Changes the icon of an element.
export function setIcon(element, name) {
  element.querySelector("use").setAttribute("href", `#icon-${name}`);
}

export const byId = (id) => document.getElementById(id);
