// The buttons of the panel. What takes the place of a button that was clicked takes the focus, too.
let clicked = "";
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]:not([aria-disabled])");
  if (!button) return;
  const { action, message = "" } = window.chatcache.meant(event, "button[data-action]");
  clicked = action;
  if (action === "verify") trigger("verify");
  else trigger("act", { action, message });
  // Dropping all waits for replies that are being written.
  if (action === "drop-all") button.disabled = true;
});
watch("value", () => requestAnimationFrame(() => {
  if (!clicked || document.activeElement !== document.body) return;
  const next = { ask: "drop-all", drop: "drop" }[clicked];
  const buttons = [next, clicked, "ask"].map((name) => element.querySelector(`button[data-action='${name}']:not(:disabled)`));
  buttons.find(Boolean)?.focus({ preventScroll: true });
}));
// While the panel is looked at, it stays true; a question that waits for its answer is not taken away.
setInterval(() => {
  if (!document.hidden && element.offsetParent && !element.querySelector(".ask, [aria-disabled]")) trigger("looked");
}, 15000);
