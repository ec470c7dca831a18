// Creates elements; strings stay text and are never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("button", {class: "x", onclick: f}, "text", child): an element with attributes and listeners.
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export function icon(name) {
  return svg("svg", {class: "icon", "aria-hidden": "true"}, svg("use", {href: `#icon-${name}`}));
}

// Changes the icon of an element.
export function setIcon(element, name) {
  element.querySelector("use").setAttribute("href", `#icon-${name}`);
}

export const byId = (id) => document.getElementById(id);
