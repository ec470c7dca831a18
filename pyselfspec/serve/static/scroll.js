// The view goes along with a text that grows, until somebody scrolls back.

import {byId} from "./dom.js";

const NEAR = 80; // pixels from the end at which the view goes along
const scroll = byId("scroll");
let follows = true;

scroll.addEventListener(
  "scroll",
  () => (follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR),
  {passive: true},
);

export const toEnd = () => (scroll.scrollTop = scroll.scrollHeight);
export const followEnd = () => follows && toEnd();
