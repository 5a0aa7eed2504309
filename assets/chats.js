let restored = null;

// A plain click on a chat opens it here; any other click is left to the browser, for the entries are real links.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  restored = button?.dataset.action === "restore" ? button.dataset.message : null;
  if (button) return trigger("act", { action: button.dataset.action, message: button.dataset.message ?? "" });
  const link = event.target.closest("a[data-session]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  window.chatcache.expectWords(new URL(link.href).searchParams.getAll("word"));
  window.chatcache.go(link.dataset.session, false, link.dataset.message);
});

// Whoever stands on a chat stands on it still when the list has changed around it, and whoever restored one stands on it
// where it is back; a question is answered with No by
// the next key, unless the person moves.
let chat = null;
element.addEventListener("focusin", (event) => { chat = event.target.closest("a[data-session]")?.dataset.session; });
element.addEventListener("focusout", () => { chat = null; });
let isAsked = false;
watch("value", () => {
  const held = chat ?? restored;
  const link = held && element.querySelector(`#chats a[data-session="${CSS.escape(held)}"]`);
  restored = null;
  if (link && link !== document.activeElement) link.focus();
  const no = element.querySelector(".question .keep");
  if (no && !isAsked) no.focus();
  isAsked = Boolean(no);
});
