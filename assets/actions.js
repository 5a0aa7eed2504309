// Buttons inside rendered HTML say what they do in data-action, and about what in data-message.
const FOLLOWED = ["regenerate", "continue", "edit"]; // what is written anew is what the person wants to see
const REPEATED = ["rollback", "forward"];
const act = (detail) => {
  if (FOLLOWED.includes(detail.action)) window.chatcache.scroll.toEnd();
  if (REPEATED.includes(detail.action)) window.chatcache.scroll.hold(`article.tip [data-action="${detail.action}"]`);
  trigger("act", detail);
};
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const { action, message = "" } = window.chatcache.meant(event, "button[data-action]");
  if (action === "copy" || action === "copy-code") window.chatcache.copy(button);
  else if (action === "edit") window.chatcache.editor.begin(message);
  else if (action === "previous" || action === "next") window.chatcache.step(button, (step) => trigger("step", step));
  else act({ action, message });
});
element.addEventListener("chatcache-act", (event) => act(event.detail));
