element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action='copy-code']");
  if (button) window.chatcache.copy(button);
});
