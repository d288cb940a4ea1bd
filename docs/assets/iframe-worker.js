// SPDX-License-Identifier: Apache-2.0

// Two changes of the search. If the site is opened as a file, browsers start no Worker: a hidden frame runs the search in its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #loaded;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, {src: source, onload: resolve, onerror: reject});
        inside.document.body.append(script);
      });
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      this.#loaded = load(url).then(() => inside);
    }

    postMessage(data) {
      this.#loaded.then((inside) => inside.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}

// The search takes a dash before a word as "without it", and two as a mistake. Who types --fail-open looks for that flag: all its words.
{
  const MESSAGE_QUERY = 2;
  const FLAG = /(?<!\S)-+(\w[\w-]*)/g;
  const allWords = (_, flag) => flag.split("-").filter(Boolean).map((word) => "+" + word).join(" ");
  window.Worker = class extends window.Worker {
    postMessage(message) {
      const {type, data} = message;
      super.postMessage(type === MESSAGE_QUERY ? {type, data: data.replace(FLAG, allWords)} : message);
    }
  };
}
