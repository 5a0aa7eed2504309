// What the chat takes of the context has changed: what is left for the message in the box has, too.
watch("value", () => {
  if (window.chatcache.box()?.value) window.dispatchEvent(new Event("chatcache-typed"));
});
