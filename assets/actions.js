// Buttons inside rendered HTML say what they do in data-action, and about what in data-message.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const { action, message = "" } = button.dataset;
  if (action === "copy" || action === "copy-code") window.chatcache.copy(button);
  else if (action === "edit") window.chatcache.editor.begin(message);
  else trigger("act", { action, message });
});
element.addEventListener("chatcache-act", (event) => trigger("act", event.detail));
