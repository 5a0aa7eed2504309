// The list of chats is read anew when this chat has changed, or another one that this tab has written to; now and then, for
// other tabs begin chats too; and when the tab is looked at.
const tell = () => {
  if (!document.hidden) trigger("changed");
};
watch("value", () => {
  tell();
  window.dispatchEvent(new CustomEvent("chatcache-seen", { detail: JSON.parse(props.value).session ?? "" }));
});
window.addEventListener("chatcache-elsewhere", tell);
setInterval(tell, 15000);
document.addEventListener("visibilitychange", tell);
