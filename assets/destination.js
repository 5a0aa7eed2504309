// Where the person wants to go: at first where the address says, then to what was clicked. The server reads it when it has
// time to: of several clicks, however fast, the last one counts.
const choose = (session, message = "", isTemporary = false) => {
  window.dispatchEvent(new CustomEvent("chatcache-asked", { detail: { session, temporary: isTemporary } }));
  const draft = message && window.chatcache.drafts.get(session);
  props.value = JSON.stringify({ session, message, temporary: isTemporary, draft });
  trigger("chosen");
};
const travel = () => choose(window.chatcache.addressed(), window.chatcache.addressed("message"));
window.addEventListener("chatcache-go", ({ detail }) => choose(detail.session, detail.message, detail.isTemporary));
window.addEventListener("popstate", travel);
setTimeout(travel);
