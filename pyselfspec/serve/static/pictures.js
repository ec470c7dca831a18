// Pictures of the next message, pasted or dropped on the page, as JPEG files in data URLs: small
// ones, since conversations stay in the browser's storage.

import {button, byId, h, icon} from "./dom.js";
import {toast} from "./toast.js";

const SIDE = 1024; // pixels of the longer side at most
const QUALITY = 0.85;

let waiting = [];
let reads = () => false; // whether the model reads pictures

// Adds pictures from now on; able() tells whether the model reads them.
export function takePictures(able) {
  reads = able;
  byId("message").addEventListener("paste", (event) => {
    const data = event.clipboardData; // of office programs: text, and a picture of it
    if (!data.getData("text/plain")) add(event, data);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => add(event, event.dataTransfer));
}

// Returns the pictures for a message, and forgets them.
export function taken() {
  const found = waiting;
  waiting = [];
  show();
  return found;
}

export const thumbnails = (urls) =>
  urls?.length > 0 && h("div", {class: "pictures"}, ...urls.map((src) => h("img", {src, alt: "Picture"})));

async function add(event, {files}) {
  if (!files.length) return; // text, for the field
  event.preventDefault();
  if (!reads()) return toast("This model reads no pictures.");
  for (const file of files) {
    const url = await jpeg(file).catch(() => toast(`${file.name} is no picture.`));
    if (url) waiting.push(url);
    show();
  }
}

async function jpeg(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  const scaled = (side) => Math.max(1, Math.round(side * scale));
  const [width, height] = [scaled(image.width), scaled(image.height)];
  const canvas = h("canvas", {width, height});
  const paper = canvas.getContext("2d");
  paper.fillStyle = "white"; // JPEG has no transparency
  paper.fillRect(0, 0, width, height);
  paper.drawImage(image, 0, 0, width, height);
  return canvas.toDataURL("image/jpeg", QUALITY);
}

function show() {
  byId("pictures").hidden = !waiting.length;
  byId("pictures").replaceChildren(
    ...waiting.map((src, i) => {
      const onclick = () => (waiting.splice(i, 1), show(), byId("message").focus());
      const named = {class: "icon-button", "aria-label": `Remove picture ${i + 1}`};
      const image = h("img", {src, alt: `Picture ${i + 1}`});
      return h("li", {}, image, button({...named, onclick}, icon("close")));
    }),
  );
}
