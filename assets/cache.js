// On a narrow screen the figures wait behind a button, and then lie over the chat until they are closed.
const panel = element.closest("#side");
const toggle = () => element.querySelector("button[data-action='details']");
const isOpen = () => panel.hasAttribute("data-details");
const show = () => toggle()?.setAttribute("aria-expanded", String(isOpen()));
const open = (isWanted) => {
  panel.toggleAttribute("data-details", isWanted);
  show();
};
element.addEventListener("click", (event) => {
  if (event.target.closest("button[data-action='details']")) open(!isOpen());
});
document.addEventListener("click", (event) => {
  if (!event.composedPath().includes(panel)) open(false);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || !isOpen() || !toggle()?.checkVisibility()) return;
  event.preventDefault(); // it stops nothing then
  open(false);
  toggle().focus();
}, true);
watch("value", show);
