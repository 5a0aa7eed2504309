// The names of files that were chosen for import and cannot be chats.
window.addEventListener("chatcache-unfit", ({ detail }) => {
  props.value = JSON.stringify(detail.unfit);
  if (detail.isAlone) trigger("alone");
});
