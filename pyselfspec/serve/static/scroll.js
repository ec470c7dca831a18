// The view follows a growing text until the user scrolls back.

import {byId} from "./dom.js";

const NEAR = 80; // pixels from the end within which the view follows
const scroll = byId("scroll");
let follows = true;

scroll.addEventListener(
  "scroll",
  () => (follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR),
  {passive: true},
);

export const toEnd = () => (scroll.scrollTop = scroll.scrollHeight);
export const followEnd = () => follows && toEnd();
