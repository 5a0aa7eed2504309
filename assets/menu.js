// On a phone what can be done with the chat stands in a menu, in words: see `chat.css`. Any click closes it, and Escape.
const head = element.closest("#head");
const button = () => element.querySelector("button");
const isOpen = () => head.hasAttribute("data-menu");
const set = (isOpen) => {
  head.toggleAttribute("data-menu", isOpen);
  button().setAttribute("aria-expanded", String(isOpen));
};
document.addEventListener("click", ({ target }) => {
  const wasOpen = isOpen();
  if (target.closest("#menu button")) {
    set(!wasOpen);
    if (!wasOpen) head.querySelector("#session-tools button").focus();
  } else if (wasOpen) {
    const isInside = head.contains(document.activeElement);
    set(false);
    if (isInside) button().focus();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !isOpen()) return;
  event.preventDefault(); // it stops no reply then
  set(false);
  button().focus();
}, true);
