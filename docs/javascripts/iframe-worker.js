// A worker in a hidden frame, for pages that are read from a folder: browsers start no real worker there, and the
// search runs in one. The theme wants a file of this name, and would load one from elsewhere without it.
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inside = this.frame.contentWindow;
    this.listen = (event) => {
      if (event.source !== inside) return;
      this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      if (this.onmessage) this.onmessage(event);
    };
    window.addEventListener("message", this.listen);
    inside.document.open();
    inside.document.write(
      "<html><body><script>postMessage = (data) => parent.postMessage(data, '*');" +
        "importScripts = (...files) => files.reduce((before, file) => before.then(() => new Promise((done) => {" +
        "const script = document.createElement('script'); script.src = file; script.onload = done;" +
        "document.body.appendChild(script); })), Promise.resolve());<\/script>" +
        `<script src="${address}"><\/script></body></html>`,
    );
    inside.document.close();
    // Only now: opening the document takes away the listeners of its window.
    this.ready = new Promise((resolve) => inside.addEventListener("load", resolve));
  }

  postMessage(data) {
    this.ready.then(() => {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    });
  }

  terminate() {
    window.removeEventListener("message", this.listen);
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
