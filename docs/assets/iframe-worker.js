// The site is opened as a file: browsers start no Worker there. A hidden frame runs the search in its place.
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
