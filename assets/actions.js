// Buttons inside rendered HTML say what they do in data-action, and about what in data-message.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const action = button.dataset.action;
  if (action === "copy" || action === "copy-code") window.chatcache.copy(button);
  else trigger("act", { action, message: button.dataset.message ?? "" });
});
