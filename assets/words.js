// Where words stand in what is shown, whatever the case and the accents, also where some letters of one are bold: as ranges.
(() => {
  const BLOCKS = "p, li, td, th, h1, h2, h3, h4, h5, h6, pre, summary, div, blockquote";
  const OURS = "button, small, .code-head"; // nobody wrote that
  const MOST = 1000;

  // As the search folds: letter by letter, for a Σ becomes another letter at a word's end; upper case first, for ß and ς.
  const foldLetter = (letter) =>
    letter.normalize("NFKD").replace(/[\u0300-\u036f]/g, "").toUpperCase().toLowerCase().replace(/\s/g, " ");
  const fold = (text) => Array.from(text, foldLetter).join("");
  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  // In order. The longest of the words is what a hit is shown by: `isBest`.
  window.chatcache.rangesOf = (element, words) => {
    const wanted = [...new Set(words.map(fold))].filter(Boolean).sort((one, other) => other.length - one.length);
    if (!wanted.length) return [];
    const nodes = [];
    const starts = [];
    let text = "";
    let block = null;
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      if (node.parentElement.closest(OURS)) continue;
      const within = node.parentElement.closest(BLOCKS);
      if (within !== block) text += "\n"; // no word goes on in another block
      block = within;
      let at = 0;
      for (const letter of node.data) {
        const folded = foldLetter(letter);
        for (let place = 0; place < folded.length; place++) {
          nodes[text.length + place] = node;
          starts[text.length + place] = at;
        }
        text += folded;
        at += letter.length;
      }
    }
    const found = [];
    for (const { index, 0: word } of text.matchAll(new RegExp(wanted.map(escaped).join("|"), "g"))) {
      const range = document.createRange();
      const last = index + word.length - 1;
      range.setStart(nodes[index], starts[index]);
      range.setEnd(nodes[last], starts[last] + String.fromCodePoint(nodes[last].data.codePointAt(starts[last])).length);
      found.push({ range, isBest: word.length === wanted[0].length });
      if (found.length === MOST) break;
    }
    return found;
  };
})();
