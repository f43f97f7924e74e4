// Finds messages of errors and warnings that are pasted into the search, with the values that they have in a run.
// An entry of the reference fits if the words of its heading are in what was pasted, in the same order: it comes first.
// Of the rest of the site, the theme would find every page with a word that begins like one of those, such as `a`.
const [SETUP, QUERY, RESULT] = [0, 2, 3];
const MESSAGES = "reference/messages/";
const WORDS_OF_A_MESSAGE = 4;
const MOST_ENTRIES = 5;

function wordsOf(text) {
  return text.split(/[\s,;:!?=()[\]{}<>"'`|~^*+-]+|\.(?!\w)/).filter(Boolean);
}

// A word with a weight is looked for as it is, and its signs are no orders.
function withoutOrders(text) {
  return [...new Set(wordsOf(text))].map((word) => `${word}^1`).join(" ");
}

function bare(text) {
  return text.replace(/`/g, "").replace(/\s+/g, " ").trim();
}

// What stands between the placeholders of a heading.
function pieces(title) {
  const parts = title.replace(/<[^>]+>/g, "").split(/&lt;.*?&gt;/);
  return parts.map((part) => bare(part.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&"))).filter(Boolean);
}

function fits(parts, text) {
  let end = 0;
  return parts.every((part) => {
    const start = text.indexOf(part, end);
    end = start + part.length;
    return start >= 0;
  });
}

const pageOf = (location) => location.split("#")[0];

window.Worker = class extends window.Worker {
  constructor(...settings) {
    super(...settings);
    this.entries = [];
    this.found = [];
    this.addEventListener("message", ({ data }) => data.type === RESULT && this.putFirst(data.data.items));
  }

  postMessage(message) {
    if (message.type === SETUP) this.read(message.data.docs);
    if (message.type !== QUERY) return super.postMessage(message);
    const isMessage = wordsOf(message.data).length >= WORDS_OF_A_MESSAGE;
    this.found = isMessage ? this.find(bare(message.data)) : [];
    super.postMessage(isMessage ? { ...message, data: withoutOrders(message.data) } : message);
  }

  read(docs) {
    this.pages = new Map(docs.filter(({ location }) => !location.includes("#")).map((doc) => [doc.location, doc]));
    const headings = docs.filter(({ location }) => location.startsWith(MESSAGES) && location.includes("#"));
    const entries = headings.map((doc) => ({ doc, parts: pieces(doc.title) }));
    this.entries = entries.filter(({ parts }) => parts.length > 1 || wordsOf(parts.join(" ")).length > 2);
  }

  // The one with most words of its own first.
  find(text) {
    const length = ({ parts }) => parts.join("").length;
    return this.entries.filter(({ parts }) => fits(parts, text)).sort((one, other) => length(other) - length(one));
  }

  putFirst(groups) {
    for (const { doc } of this.found.slice(0, MOST_ENTRIES).reverse()) {
      const page = pageOf(doc.location);
      const place = groups.findIndex(([first]) => pageOf(first.location) === page);
      const [group] = place < 0 ? [[{ ...this.pages.get(page), score: 0, terms: {} }]] : groups.splice(place, 1);
      const others = group.filter(({ location }) => location !== doc.location);
      groups.unshift([{ ...doc, score: Infinity, terms: {} }, ...others]);
    }
  }
};
