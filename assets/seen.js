// The list of chats is read at first, for a tab that begins without a chat sees nothing change; again when this chat has
// changed; now and then, for other tabs begin chats too; and when the tab is looked at.
const tell = () => {
  if (!document.hidden) trigger("changed");
};
watch("value", tell);
setInterval(tell, 15000);
document.addEventListener("visibilitychange", tell);
tell();
