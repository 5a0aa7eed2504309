// Where a chat is seen when it is opened: at its end, or at a message that a search led to. That one has the focus and, for a
// moment, a frame; the words that were looked for are marked in it until the person goes on elsewhere.
(() => {
  const { chatcache } = window;
  const FRAME_MS = 3000;
  const FADED_PX = 64; // see `.bubble:has(+ .unfold)`
  const HIGHLIGHT = "cc-found";
  // Rules and highlights, for a repaint takes away whatever a script has put on an element.
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  let chat = null;
  let awaited = "";
  let marked = { id: "", words: [], hits: [] };
  let expected = new URLSearchParams(window.location.search).getAll("word");
  let fading = 0;

  const articleOf = (id) => !id ? null : document.querySelector(`#transcript article[data-id="${CSS.escape(id)}"]`);
  const frame = (id, colour) => {
    clearTimeout(fading);
    sheet.replaceSync(id && `article[data-id="${CSS.escape(id)}"] { --cc-mark: 2px solid ${colour}; }`);
  };
  const fade = () => {
    if (document.hidden) return document.addEventListener("visibilitychange", fade, { once: true });
    const { id } = marked;
    fading = setTimeout(() => frame(id, "transparent"), FRAME_MS);
  };
  const mark = (id, words = []) => {
    marked = { id, words, hits: [] };
    frame(id, "var(--cc-accent)");
    highlight();
  };
  const highlight = () => {
    const text = articleOf(marked.id)?.querySelector(".prose, .bubble");
    marked.hits = text ? chatcache.rangesOf(text, marked.words) : [];
    if (window.Highlight) CSS.highlights.set(HIGHLIGHT, new Highlight(...marked.hits.map(({ range }) => range)));
  };
  const best = () => marked.hits.find(({ isBest }) => isBest)?.range;

  // What a word stands in is unfolded, and scrolled to where it is.
  const reveal = (article) => {
    const range = best();
    if (!range) return;
    const within = (kind, element = range.startContainer.parentElement) => element.closest(kind);
    for (let fold = within("details"); fold; fold = within("details", fold.parentElement)) chatcache.unfold(fold);
    const cut = article.querySelector(":scope > .unfold:not([open])");
    const bottomOf = (seen) => seen.getBoundingClientRect().bottom;
    if (cut && bottomOf(range) > bottomOf(article.querySelector(".bubble")) - FADED_PX) chatcache.unfold(cut);
    const box = within("pre");
    if (!box) return;
    const [word, seen] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
    if (word.bottom > seen.bottom) box.scrollTop += word.top - seen.top - box.clientHeight / 3;
    if (word.right > seen.right) box.scrollLeft += word.left - seen.left - box.clientWidth / 3;
  };
  const arrive = () => {
    if (marked.id) highlight();
    const message = articleOf(awaited);
    if (!message) return;
    awaited = "";
    reveal(message);
    chatcache.scroll.seek(message.dataset.id);
    fade();
    const { activeElement } = document;
    if (activeElement === document.body || activeElement.closest("#sidebar")) chatcache.focusMessage(message);
  };
  window.addEventListener("chatcache-place", ({ detail: { session, message } }) => {
    if (message) chatcache.scroll.seek(message);
    else if (session === chat) return;
    else chatcache.scroll.toEnd();
    chat = session;
    awaited = message ?? "";
    mark(awaited, awaited === marked.id && !expected.length ? marked.words : expected);
    expected = [];
    arrive();
  });

  // The words that the next message is found by.
  chatcache.expectWords = (words) => {
    expected = words;
  };
  // What was found in a message, where it is the one that a search led to.
  chatcache.wordIn = (article) => (article.dataset.id === marked.id ? best() : null);
  chatcache.unmark = () => mark("");

  const watch = () => {
    const transcript = document.getElementById("transcript");
    if (!transcript) return setTimeout(watch, 20);
    new MutationObserver(arrive).observe(transcript, { childList: true, subtree: true, attributeFilter: ["data-id"] });
  };
  watch();
})();
