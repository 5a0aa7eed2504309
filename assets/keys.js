// Shortcuts: Alt+Shift and a letter, which browsers and screen readers leave to the page; "?" lists them.
(() => {
  const { chatcache } = window;
  const click = (selector) => () => document.querySelector(selector)?.click();
  const lastOf = (selector) => () => [...document.querySelectorAll(selector)].at(-1)?.click();
  const search = () => {
    const sidebar = document.getElementById("sidebar");
    if (!sidebar.classList.contains("open")) sidebar.querySelector(".toggle-button").click();
    sidebar.querySelector("input")?.focus();
  };
  const SHORTCUTS = {
    KeyN: click("#new-chat"),
    KeyK: search,
    KeyR: lastOf("#transcript .tip [data-action='regenerate']"),
    KeyE: lastOf("#transcript .message.user [data-action='edit']"),
    KeyJ: lastOf("#transcript .tip [data-action='previous']:not(:disabled)"),
    KeyL: lastOf("#transcript .tip [data-action='next']:not(:disabled)"),
    KeyM: () => chatcache.box()?.focus(),
  };
  const isTyping = (element) => element.closest?.("input, textarea, select, [contenteditable]");
  const isMac = /Mac|iP(hone|ad)/.test(navigator.platform);
  const dialog = () => document.getElementById("shortcuts-dialog");
  chatcache.showShortcuts = () => {
    if (!dialog().open) dialog().showModal();
  };

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const { altKey, shiftKey, ctrlKey, metaKey, key, code, target } = event;
    if (key === "?" && !altKey && !ctrlKey && !metaKey && !isTyping(target)) {
      event.preventDefault();
      chatcache.showShortcuts();
    } else if (altKey && shiftKey && !ctrlKey && !metaKey && SHORTCUTS[code]) {
      if (isMac && isTyping(target)) return; // there these keys write letters
      event.preventDefault();
      SHORTCUTS[code]();
    }
  });
  document.addEventListener("click", (event) => {
    const { target } = event;
    if (target.closest("[data-page='skip']")) {
      event.preventDefault();
      chatcache.box()?.focus();
    } else if (target.closest("[data-page='shortcuts']")) chatcache.showShortcuts();
    else if (target.closest("[data-page='attach']")) chatcache.pickFiles();
    else if (target.closest("[data-page='close']") || target === dialog()) dialog().close();
  });
})();
