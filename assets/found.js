// Where a chat is seen when it is opened: at its end, or at a message that a search led to. That one is marked, and has the
// focus, until the person goes on elsewhere.
(() => {
  const { chatcache } = window;
  // A rule, for a repaint takes away whatever a script has put on an element.
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  let chat = null;
  let awaited = "";

  const mark = (id) => sheet.replaceSync(id && `article[data-id="${CSS.escape(id)}"] { --cc-mark: 2px solid var(--cc-accent); }`);
  const arrive = () => {
    const message = awaited && document.querySelector(`#transcript article[data-id="${CSS.escape(awaited)}"]`);
    if (!message) return;
    awaited = "";
    const { activeElement } = document;
    if (activeElement === document.body || activeElement.closest("#sidebar")) chatcache.focusMessage(message);
  };
  window.addEventListener("chatcache-place", ({ detail: { session, message } }) => {
    if (message) chatcache.scroll.seek(message);
    else if (session === chat) return;
    else chatcache.scroll.toEnd();
    chat = session;
    awaited = message ?? "";
    mark(awaited);
    arrive();
  });

  chatcache.unmark = () => mark("");

  const watch = () => {
    const transcript = document.getElementById("transcript");
    if (!transcript) return setTimeout(watch, 20);
    new MutationObserver(arrive).observe(transcript, { childList: true, subtree: true, attributeFilter: ["data-id"] });
  };
  watch();
})();
