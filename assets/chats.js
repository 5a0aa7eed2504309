let restored = null;

// The list is read when it has changed, the page knows at once where it is: so it marks that chat itself.
let place = "";
const markPlace = () => {
  for (const link of element.querySelectorAll("a[data-session]")) {
    if (link.dataset.session === place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
};
window.addEventListener("chatcache-place", ({ detail }) => {
  place = detail.session;
  markPlace();
});

// A plain click on a chat opens it here; any other click is left to the browser, for the entries are real links.
element.addEventListener("click", (event) => {
  const { meant } = window.chatcache;
  const button = meant(event, "button[data-action]");
  restored = button?.action === "restore" ? button.message : null;
  if (button) return trigger("act", { action: button.action, message: button.message ?? "" });
  const link = meant(event, "a[data-session]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  window.chatcache.expectWords(new URL(link.href).searchParams.getAll("word"));
  window.chatcache.go(link.session, false, link.message);
});

// Whoever stands on a chat stands on it still when the list has changed around it, and whoever restored one stands on it
// where it is back; a question is answered with No by
// the next key, unless the person moves.
let chat = null;
element.addEventListener("focusin", (event) => { chat = event.target.closest("a[data-session]")?.dataset.session; });
element.addEventListener("focusout", () => { chat = null; });
let isAsked = false;
watch("value", () => {
  markPlace();
  const held = chat ?? restored;
  const link = held && element.querySelector(`#chats a[data-session="${CSS.escape(held)}"]`);
  restored = null;
  if (link && link !== document.activeElement) link.focus();
  const no = element.querySelector(".question .keep");
  if (no && !isAsked) no.focus();
  isAsked = Boolean(no);
});
